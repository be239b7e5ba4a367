"""Images from the Hugging Face hub, with the optional extra fedceo[hub]."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fedceo.data.arrays import from_arrays
from fedceo.data.files import first_line
from fedceo.data.source import Source
from fedceo.errors import UsageError

PREFIX = "hf:"
IMAGES = ("image", "img", "images", "pixels", "x")
LABELS = ("label", "labels", "fine_label", "target", "y")
TESTS = ("test", "validation", "valid")


def load_hub(name: str, image: str | None = None, label: str | None = None) -> Source:
    """The images and labels of "hf:owner/name": uint8 (records, channels, height, width), int64 from 0.

    The split "train" is assigned to clients; "test", else "validation", is the public test set; where there is neither,
    the test set is a fixed fifth of "train". The hub's library caches its downloads.

    Args:
        image, label: names of the columns; left out, the usual names are tried.
    """
    try:
        import datasets
    except ImportError:
        raise UsageError(f"data.name: {name} needs the extra fedceo[hub]") from None
    try:
        splits = datasets.load_dataset(name.removeprefix(PREFIX))
    except Exception as error:  # the library raises its own errors and those of half a dozen other packages
        raise UsageError(f"data.name: {name} cannot be had from the hub: {first_line(error)}") from None
    if "train" not in splits:
        raise UsageError(f"data.name: {name} has no split train, it has {', '.join(splits)}")
    image = _column(splits["train"].features, image, IMAGES, "data.image_column")
    label = _column(splits["train"].features, label, LABELS, "data.label_column")
    arrays = {"x": _images(splits["train"][image], name), "y": np.asarray(list(splits["train"][label]))}
    for test in TESTS:
        if test in splits:
            arrays |= {"test_x": _images(splits[test][image], name), "test_y": np.asarray(list(splits[test][label]))}
            break
    return from_arrays(**arrays, name=name)


def _column(features: Mapping[str, Any], given: str | None, usual: tuple[str, ...], field: str) -> str:
    found = [name for name in ([given] if given else usual) if name in features]
    if not found:
        raise UsageError(f"{field}: {given or 'not given'}; the columns are {', '.join(features)}")
    return found[0]


def _images(pictures: Iterable[Any], name: str) -> npt.NDArray[np.uint8]:
    try:
        stack = np.stack([np.asarray(picture) for picture in pictures])
    except ValueError:
        raise UsageError(f"data.name: the images of {name} are of several shapes") from None
    if stack.dtype != np.uint8 or stack.ndim not in (3, 4):
        raise UsageError(f"data.image_column: expected images of bytes, got {stack.dtype} {stack.shape[1:]}")
    return np.moveaxis(stack, 3, 1) if stack.ndim == 4 else stack

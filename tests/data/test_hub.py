"""A data set of the Hugging Face hub, with a stand-in for its library."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedceo.data import build_federation
from fedceo.errors import UsageError
from fedceo.experiment.sections import Data


class Split(dict[str, list[Any]]):
    """A table of columns that knows their names."""

    @property
    def features(self) -> dict[str, Any]:
        return dict.fromkeys(self)


def split(records: int, shape: tuple[int, ...], image: str = "img", label: str = "label") -> Split:
    pictures = np.random.default_rng(0).integers(0, 256, (records, *shape)).astype(np.uint8)
    return Split({image: list(pictures), label: [n % 3 for n in range(records)]})


def serve(monkeypatch: pytest.MonkeyPatch, splits: Any) -> None:
    def load_dataset(name: str) -> Any:
        assert name == "owner/name"
        if isinstance(splits, Exception):
            raise splits
        return splits

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))


def settings(**given: Any) -> Data:
    return Data.model_validate({"name": "hf:owner/name", "clients": 3} | given)


def test_colour_images(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {"train": split(12, (5, 4, 3)), "test": split(6, (5, 4, 3))}
    serve(monkeypatch, splits)
    federation = build_federation(settings(), 0)
    assert federation.shape == (3, 5, 4) and federation.classes == 3 and len(federation.test_y) == 6
    np.testing.assert_array_equal(federation.x[2].permute(1, 2, 0), splits["train"]["img"][2])


def test_grey_images_named_columns_and_no_test_split(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {"train": split(10, (5, 4), image="scan", label="what")})
    federation = build_federation(settings(image_column="scan", label_column="what"), 0)
    assert federation.shape == (1, 5, 4) and len(federation.test_y) == 2


@pytest.mark.parametrize(
    "splits, words",
    [
        (ValueError("no such\nthing"), "hf:owner/name cannot be had from the hub: no such"),
        ({"test": split(3, (2, 2))}, "has no split train, it has test"),
        ({"train": split(3, (2, 2), image="scan")}, "data.image_column: not given; the columns are scan, label"),
        ({"train": split(3, (2, 2), label="what")}, "data.label_column: not given; the columns are img, what"),
        ({"train": split(3, (2,))}, "expected images of bytes"),
        ({"train": Split(img=[np.zeros((2, 2)), np.zeros((3, 2))], label=[0, 1])}, "of several shapes"),
    ],
)
def test_what_is_refused(monkeypatch: pytest.MonkeyPatch, splits: Any, words: str) -> None:
    serve(monkeypatch, splits)
    with pytest.raises(UsageError) as caught:
        build_federation(settings(), 0)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"needs the extra fedceo\[hub\]"):
        build_federation(settings(), 0)

"""MNIST (LeCun, Cortes, Burges) from the authors' idx files, as downloaded or unpacked, in mnist/."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedceo.data.source import Source, check_labels, data_folder
from fedceo.errors import UsageError


def load_mnist(root: Path | None) -> Source:
    """60,000 images to train on and 10,000 to test on, uint8 (records, 1, 28, 28)."""
    folder = data_folder(root, "mnist")
    x, y = _read_pair(folder, "train")
    test_x, test_y = _read_pair(folder, "t10k")
    return Source("mnist", x, y, test_x, test_y, classes=10, mean=(0.1307,), std=(0.3081,))


def _read_pair(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    images_path = _find(folder, f"{part}-images-idx3-ubyte")
    labels_path = _find(folder, f"{part}-labels-idx1-ubyte")
    images, labels = read_idx(images_path, axes=3), read_idx(labels_path, axes=1)
    if len(images) != len(labels):
        raise UsageError(f"{images_path}: holds {len(images)} images but {labels_path.name} holds {len(labels)} labels")
    y = torch.from_numpy(labels.astype(np.int64))
    check_labels(y, 10, str(labels_path))
    return torch.from_numpy(images).unsqueeze(1), y


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise UsageError(f"{folder / name}.gz: no such file, gzip or unpacked")


def read_idx(path: Path, axes: int) -> npt.NDArray[np.uint8]:
    """The bytes of an idx file: magic number 0x0000_08_axes, big-endian sizes, then the values."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":  # told by content: some browsers unpack a download and keep its name
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: cannot be read, truncated or corrupt: {error}") from None
    start = 4 + 4 * axes
    if len(content) < start or content[:4] != bytes((0, 0, 8, axes)):
        raise UsageError(f"{path}: not an idx file of bytes with {axes} axes, gzip or plain")
    sizes = tuple(np.frombuffer(content, ">u4", axes, offset=4).tolist())
    if len(content) - start != math.prod(sizes):
        raise UsageError(
            f"{path}: truncated or corrupt: its header says {' x '.join(map(str, sizes))} bytes of values, "
            f"it holds {len(content) - start}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes).copy()  # a buffer of bytes is read-only

"""The idx files of MNIST and its relatives."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedceo.data.files import Content
from fedceo.data.source import check_labels
from fedceo.errors import UsageError


def decode_pair(pair: Sequence[Content], classes: int, first: int = 0) -> tuple[Tensor, Tensor]:
    """Images, uint8 (records, 1, height, width), and labels counted from 0, of an images and a labels file.

    Args:
        first: the smallest label in the file.
    """
    images, labels = pair
    x, y = decode(images, axes=3), decode(labels, axes=1)
    if len(x) != len(y):
        raise UsageError(f"{images.where}: holds {len(x)} images but {Path(labels.where).name} holds {len(y)} labels")
    check_labels(given := torch.from_numpy(y.astype(np.int64)), classes, labels.where, first)
    return torch.from_numpy(x).unsqueeze(1), given - first


def decode(content: Content, axes: int) -> npt.NDArray[np.uint8]:
    """The array in an idx file: magic number 0x0000_08_axes, big-endian sizes, then the values."""
    where, data = content
    start = 4 + 4 * axes
    if len(data) < start or data[:4] != bytes((0, 0, 8, axes)):
        raise UsageError(f"{where}: not an idx file of bytes with {axes} axes, gzip or plain")
    sizes = tuple(np.frombuffer(data, ">u4", axes, offset=4).tolist())
    if len(data) - start != math.prod(sizes):
        raise UsageError(
            f"{where}: truncated or corrupt: its header says {' x '.join(map(str, sizes))} bytes of values, "
            f"it holds {len(data) - start}"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(sizes).copy()  # a buffer of bytes is read-only

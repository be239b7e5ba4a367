"""Records and labels as a data set stores them, before they are assigned to clients."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedceo.errors import UsageError

Integers = npt.NDArray[np.int64]
"""Labels, or indices of records."""

HELD_OUT = 0.2
"""Fraction of the records that becomes the test set of data that comes without one."""


@dataclass(frozen=True)
class Source:
    """A data set's records, checked on construction so that they can be assigned to clients.

    Attributes:
        name: the data set's name in tables and errors.
        x: (records, *shape), uint8 pixels, float32 values, or int32 tokens, (records, length), counted from 0.
        y: (records,) int64 labels from 0 to classes - 1.
        test_x, test_y: the public test set, like x and y; empty where the data has none.
        classes: number of labels.
        mean, std: per channel, as in Federation.
        client: (records,) natural client of each record, where the data names one.
        note: one line on the rows that were left out when the files were read.
    """

    name: str
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    client: Tensor | None = None
    note: str = ""

    def __repr__(self) -> str:
        owners = "" if self.client is None else f" of {len(self.client.unique()):,} natural clients"
        return (
            f"<Source {self.name}: {len(self.y):,} records{owners}, {_form(self.x)}, {self.classes} classes, "
            f"{len(self.test_y):,} test records>"
        )

    def __post_init__(self) -> None:
        if len(self.y) == 0:
            raise UsageError(f"{self.name}: no records to train on")
        for prefix, x, y in (("", self.x, self.y), ("test_", self.test_x, self.test_y)):
            if len(x) != len(y):
                raise UsageError(f"{self.name}: {prefix}x has {len(x)} records but {prefix}y has {len(y)}")
            if x.dtype not in (torch.uint8, torch.float32, torch.int32) or y.dtype != torch.int64:
                raise UsageError(
                    f"{self.name}: {prefix}x must be uint8, float32 or int32 and {prefix}y int64, "
                    f"got {x.dtype} and {y.dtype}"
                )
            if x.dtype == torch.int32 and len(x) and int(x.min()) < 0:
                raise UsageError(f"{self.name}: {prefix}x must be tokens counted from 0, got {int(x.min())}")
            if x.is_floating_point() and not bool(torch.isfinite(x).all()):
                raise UsageError(f"{self.name}: {prefix}x must be finite, got NaN or Inf")
            check_labels(y, self.classes, f"{self.name}: {prefix}y")
        if self.x.shape[1:] != self.test_x.shape[1:] or self.x.dtype != self.test_x.dtype:
            raise UsageError(
                f"{self.name}: records of x are {_form(self.x)} but those of test_x are {_form(self.test_x)}"
            )
        if self.client is not None and len(self.client) != len(self.y):
            raise UsageError(f"{self.name}: y has {len(self.y)} records but client has {len(self.client)}")


def check_labels(labels: Tensor, classes: int, where: str, first: int = 0) -> None:
    """Refuse labels outside first to first + classes - 1."""
    last = first + classes - 1
    wrong = ((labels < first) | (labels > last)).nonzero()
    if len(wrong):
        index = int(wrong[0])
        raise UsageError(f"{where}: expected labels from {first} to {last}, got {int(labels[index])} at record {index}")


def hold_out(records: int) -> tuple[Integers, Integers]:
    """Indices of the records to train on and of those to test on, the same in every experiment, whatever its seed."""
    indices = np.random.default_rng(0xDA7A).permutation(records)
    tested = max(1, round(HELD_OUT * records))
    return np.sort(indices[tested:]), np.sort(indices[:tested])


def _form(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape[1:])}"

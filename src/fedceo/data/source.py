"""Records and labels as a data set stores them, before they are assigned to clients."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedceo.data.shown import as_html, targets_in_words
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
        y: what is learnt: (records,) int64 labels from 0 to classes - 1; (records, targets) float32 numbers; or
            (records, length) int64 tokens that follow those of x, -1 where there is none.
        test_x, test_y: the public test set, like x and y; empty where the data has none.
        classes: number of labels, of targets or of tokens.
        mean, std: per channel, as in Federation.
        client: (records,) natural client of each record, where the data names one.
        note: one line on the rows that were left out when the files were read.
        label_names: what the data call each class; empty where classes are only numbered.
        client_names: what the data call each natural client, by its number in `client`; empty likewise.
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
    label_names: tuple[str, ...] = ()
    client_names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        owners = "" if self.client is None else f" of {len(self.client.unique()):,} natural clients"
        return (
            f"<Source {self.name}: {len(self.y):,} records{owners}, {_form(self.x)}, "
            f"{targets_in_words(self.y, self.classes)}, {len(self.test_y):,} test records>"
        )

    def _repr_html_(self) -> str:
        if self.client is not None:
            owned = self.client.unique(return_counts=True)[1].sort(descending=True).values
            return as_html(repr(self), owned.tolist(), "records of each natural client, most first")
        labelled = self.y.bincount(minlength=self.classes).tolist() if self.y.ndim == 1 else []
        return as_html(repr(self), labelled, "records of each class")

    def __post_init__(self) -> None:
        if len(self.y) == 0:
            raise UsageError(f"{self.name}: no records to train on")
        for prefix, x, y in (("", self.x, self.y), ("test_", self.test_x, self.test_y)):
            if len(x) != len(y):
                raise UsageError(f"{self.name}: {prefix}x has {len(x)} records but {prefix}y has {len(y)}")
            known = x.dtype in (torch.uint8, torch.float32, torch.int32)
            if not known or (y.dtype, y.ndim) not in ((torch.int64, 1), (torch.int64, 2), (torch.float32, 2)):
                raise UsageError(
                    f"{self.name}: {prefix}x must be uint8, float32 or int32 and {prefix}y int64, "
                    f"got {x.dtype} and {y.dtype}"
                )
            if x.dtype == torch.int32 and len(x) and int(x.min()) < 0:
                raise UsageError(f"{self.name}: {prefix}x must be tokens counted from 0, got {int(x.min())}")
            if x.is_floating_point() and not bool(torch.isfinite(x).all()):
                raise UsageError(f"{self.name}: {prefix}x must be finite, got NaN or Inf")
            _check_targets(y, self.classes, f"{self.name}: {prefix}y")
        if self.y.shape[1:] != self.test_y.shape[1:] or self.y.dtype != self.test_y.dtype:
            raise UsageError(f"{self.name}: y is {_form(self.y)} a record but test_y is {_form(self.test_y)}")
        if self.x.shape[1:] != self.test_x.shape[1:] or self.x.dtype != self.test_x.dtype:
            raise UsageError(
                f"{self.name}: records of x are {_form(self.x)} but those of test_x are {_form(self.test_x)}"
            )
        if self.client is not None and len(self.client) != len(self.y):
            raise UsageError(f"{self.name}: y has {len(self.y)} records but client has {len(self.client)}")


def _check_targets(y: Tensor, classes: int, where: str) -> None:
    if y.is_floating_point():
        wrong = (~y.isfinite()).nonzero()
        if len(wrong):
            record, target = wrong[0].tolist()
            raise UsageError(f"{where}: expected finite numbers, got {float(y[record, target])} at record {record}")
    else:
        check_labels(y.flatten(), classes, where, first=0 if y.ndim == 1 else -1)


def check_labels(labels: Tensor, classes: int, where: str, first: int = 0) -> None:
    """Refuse labels outside first to first + classes - 1; -1 is filling, and classes - 1 stays the last."""
    last = max(first, 0) + classes - 1
    wrong = ((labels < first) | (labels > last)).nonzero()
    if len(wrong):
        index = int(wrong[0])
        raise UsageError(f"{where}: expected labels from {first} to {last}, got {int(labels[index])} at record {index}")


def hold_out(records: int) -> tuple[Integers, Integers]:
    """Indices of the records to train on and of those to test on, the same in every experiment, whatever its seed."""
    indices = np.random.default_rng(0xDA7A).permutation(records)
    tested = max(1, round(HELD_OUT * records))
    return np.sort(indices[tested:]), np.sort(indices[:tested])


def with_test_set(name: str, x: Tensor, y: Tensor, classes: int, client: Tensor | None) -> Source:
    """A source whose test set is a fixed fifth of its records.

    Data with client ids stay whole: they are divided later, when it is known whether natural clients hold out records
    of their own.
    """
    if client is not None:
        return Source(name, x, y, x[:0], y[:0], classes, client=client)
    train, test = (torch.from_numpy(indices) for indices in hold_out(len(y)))
    return Source(name, x[train], y[train], x[test], y[test], classes)


def _form(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape[1:])}"

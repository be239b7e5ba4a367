"""A federation: clients with their records, and the public test set on which every method is measured."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedceo.data.assignment import Assignment, Resampled
from fedceo.data.shown import as_html, targets_in_words


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients and their records; records are stored once, and a client is a list of indices into them.

    Attributes:
        name: the data's name in tables.
        x: (records, *shape), uint8 pixels, float32 values, or int32 tokens.
        y: (records,) int64 labels from 0; or other targets, as in Source.
        train: for each client, the indices of the records it trains on: a list of tensors, or an `Assignment` or
            `Resampled`, which hold many clients in little memory.
        validation: indices of the records of all clients that are kept out of training to choose the best round by.
        local_test: for each client, the indices of the records its personal model is measured on; empty where none are
            kept.
        test_x, test_y: the public test set, like x and y.
        classes: number of labels, or of the outputs that a model needs for other targets.
        mean, std: per channel; inputs are (x / 255 - mean) / std for uint8 and (x - mean) / std for float32.
        local_test_from: the records to which local_test's indices point: "own", records of x kept out of training, or
            "test", records of the public test set with labels like the client's.
        features_of: the federation of which this one holds features instead of records, or None.
        most_validated: the most validation records that any client has; None where they are no client's.
        label_names: what the data call each class; empty where classes are only numbered.
        client_names: what the data call each client; empty where clients are only numbered.
    """

    name: str
    x: Tensor
    y: Tensor
    train: Sequence[Tensor]
    validation: Tensor
    local_test: Sequence[Tensor]
    test_x: Tensor
    test_y: Tensor
    classes: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    local_test_from: Literal["own", "test"] = "own"
    features_of: "Federation | None" = None
    most_validated: int | None = None
    label_names: tuple[str, ...] = ()
    client_names: tuple[str, ...] = ()

    @property
    def origin(self) -> "Federation":
        """The federation of the records themselves, whose digests tell one federation from another."""
        return self.features_of or self

    def __repr__(self) -> str:
        sizes = self.sizes
        held = f"{int(sizes.min()):,} to {int(sizes.max()):,}" if len(sizes) else "no"
        return (
            f"<Federation {self.name}: {self.clients:,} clients with {held} training records of shape {self.shape}, "
            f"{targets_in_words(self.y, self.classes)}, {len(self.test_y):,} test records>"
        )

    def _repr_html_(self) -> str:
        sizes = sorted(self.sizes.tolist(), reverse=True)
        return as_html(repr(self), sizes, "training records of each client, most first")

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        return len(self.train)

    def name_of(self, client: int) -> str:
        """The natural id of a client, or its number where it has none."""
        return self.client_names[client] if self.client_names else str(client)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record: (channels, height, width), (features,) or (tokens,)."""
        return tuple(self.x.shape[1:])

    @cached_property
    def sizes(self) -> Tensor:
        """(N,) numbers of training records."""
        if isinstance(self.train, Assignment | Resampled):
            return self.train.sizes
        return torch.tensor([len(indices) for indices in self.train], dtype=torch.int64)

    @cached_property
    def has_local_test(self) -> bool:
        """Whether any client has test records of its own."""
        if isinstance(self.local_test, Resampled):
            return self.local_test.records > 0
        return any(len(indices) > 0 for indices in self.local_test)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of records, labels, partition and normalisation, by which a checkpoint knows its data again."""
        if self.features_of is not None:  # features may differ in their last bits from machine to machine
            return self.features_of.digest
        assignment = self.train.parts if isinstance(self.train, Assignment | Resampled) else self.train
        about = f"{self.mean} {self.std}"
        return _digest(about, (self.x, self.y, self.test_x, self.test_y, self.validation, *assignment))

    @cached_property
    def test_digest(self) -> str:
        """SHA-256 of the public test set; accuracies on equal test sets can be compared."""
        return _digest("", (self.origin.test_x, self.origin.test_y))

    def labels_of(self, client: int) -> list[int]:
        """The number of a client's training records of each class."""
        known = self.origin._labels
        if client not in known:
            known[client] = torch.bincount(self.y[self.train[client]], minlength=self.classes).tolist()
        return known[client]

    @cached_property
    def _labels(self) -> dict[int, list[int]]:
        return {}

    def local_test_records(self, client: int) -> tuple[Tensor, Tensor]:
        """The raw records that a client's personal model is measured on, and their labels."""
        x, y = (self.x, self.y) if self.local_test_from == "own" else (self.test_x, self.test_y)
        indices = self.local_test[client]
        return x[indices], y[indices]

    def inputs(self, records: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The model's inputs for raw records, (..., *shape): scaled and normalised, or int64 tokens unchanged."""
        if records.dtype == torch.int32:
            return records.long()
        scale = 255.0 if records.dtype == torch.uint8 else 1.0
        factor, shift = _normalisation(self.mean, self.std, scale, len(self.shape), dtype, records.device)
        return records.to(dtype, copy=True).mul_(factor).sub_(shift)


@lru_cache(16)
def _normalisation(
    mean: tuple[float, ...], std: tuple[float, ...], scale: float, axes: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The factor and then the shift of raw records, kept on the device: to copy them there costs more than to apply."""
    means, stds = (torch.tensor(each, dtype=dtype, device=device).view(-1, *(1,) * (axes - 1)) for each in (mean, std))
    return 1 / (scale * stds), means / stds


def _digest(about: str, tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256(about.encode())
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).data)
    return digest.hexdigest()

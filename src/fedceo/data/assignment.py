"""Assignments of records to clients, whose memory grows with the records and not with the number of clients."""

from collections.abc import Sequence
from typing import overload

import numpy as np
import torch
from torch import Tensor

MOST_KEPT = 2**22
"""Indices of clients that draw them which are kept, at most: 32 MiB."""


class Assignment(Sequence[Tensor]):
    """The indices of every client's records, one client after another in a single tensor."""

    def __init__(self, indices: Sequence[Tensor]) -> None:
        """indices: for each client, the indices of its records."""
        self.sizes = torch.tensor([len(each) for each in indices], dtype=torch.int64)
        self.indices = torch.cat([torch.empty(0, dtype=torch.int64), *indices])
        self._ends = [0, *torch.cumsum(self.sizes, 0).tolist()]

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, client: int) -> Tensor: ...
    @overload
    def __getitem__(self, client: slice) -> list[Tensor]: ...
    def __getitem__(self, client: int | slice) -> Tensor | list[Tensor]:
        numbers = range(len(self))[client]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        return self.indices[self._ends[numbers] : self._ends[numbers + 1]]

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The tensors that determine the assignment; a federation's digest takes them in."""
        return self.indices, self.sizes


class Resampled(Sequence[Tensor]):
    """An assignment in which each client draws a fixed number of records from a pool, without replacement.

    A client's indices are drawn from the seed when they are asked for, and some are kept for when they are asked for
    again, so that a million clients cost next to nothing. Two clients may hold the same record.
    """

    def __init__(self, pool: Tensor, clients: int, records: int, seed: int) -> None:
        """pool: indices of the records to draw from; records: how many each client holds."""
        self.pool, self.clients, self.records, self.seed = pool, clients, records, seed
        self._recent: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return self.clients

    @overload
    def __getitem__(self, client: int) -> Tensor: ...
    @overload
    def __getitem__(self, client: slice) -> list[Tensor]: ...
    def __getitem__(self, client: int | slice) -> Tensor | list[Tensor]:
        numbers = range(self.clients)[client]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        found = self._recent.get(numbers)
        if found is None:
            generator = np.random.default_rng([self.seed, 0xDA7A, 2, numbers])
            drawn = generator.choice(len(self.pool), self.records, replace=False, shuffle=False)
            found = self.pool[torch.from_numpy(drawn)]
            if len(self._recent) * self.records > MOST_KEPT:
                self._recent.clear()
            self._recent[numbers] = found
        return found

    @property
    def sizes(self) -> Tensor:
        """(N,) numbers of records, without N numbers in memory."""
        return torch.tensor(self.records).expand(self.clients)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The tensors that determine the assignment; a federation's digest takes them in."""
        return self.pool, torch.tensor([self.clients, self.records, self.seed])

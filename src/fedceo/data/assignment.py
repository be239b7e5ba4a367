"""Who holds which records, for any number of clients: sequences of places that cost memory for records, not clients."""

from collections.abc import Sequence
from typing import overload

import numpy as np
import torch
from torch import Tensor


class Assignment(Sequence[Tensor]):
    """Every client's places, one client after another in a single tensor."""

    def __init__(self, hands: Sequence[Tensor]) -> None:
        self.sizes = torch.tensor([len(hand) for hand in hands], dtype=torch.int64)
        self.places = torch.cat([torch.empty(0, dtype=torch.int64), *hands])
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
        return self.places[self._ends[numbers] : self._ends[numbers + 1]]

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """What tells it from others."""
        return self.places, self.sizes


class Resampled(Sequence[Tensor]):
    """Each client holds a fixed number of records drawn from a pool without replacement, anew for every client.

    Nothing is stored: a client's places are drawn from the seed whenever they are asked for, so that a million clients
    cost nothing. Two clients may hold the same record.
    """

    def __init__(self, pool: Tensor, clients: int, records: int, seed: int) -> None:
        """pool: places to draw from; records: how many each client holds."""
        self.pool, self.clients, self.records, self.seed = pool, clients, records, seed

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
        generator = np.random.default_rng([self.seed, 0xDA7A, 2, numbers])
        drawn = generator.choice(len(self.pool), self.records, replace=False, shuffle=False)
        return self.pool[torch.from_numpy(drawn)]

    @property
    def sizes(self) -> Tensor:
        """(N,) without N numbers in memory."""
        return torch.tensor(self.records).expand(self.clients)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """What tells it from others."""
        return self.pool, torch.tensor([self.clients, self.records, self.seed])

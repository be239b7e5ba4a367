"""Every random choice of a run as a function of (seed, purpose, round, client): randomness is data.

Two engines given the same Schedule take the same batches, dropout masks and noise, whatever order they work in. Noise
also follows from what identifies the run, so that runs with one seed share cohorts and batches, as a fair comparison
needs, but no noise that a difference of their models would be free of. With randomness = "system" all that privacy
rests on (cohorts, batches, noise) comes from the operating system instead.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from fedceo.lazy import torch
from fedceo.training.system_draws import SystemGenerator

if TYPE_CHECKING:
    from torch import Tensor

PURPOSES = (
    "model",
    "cohort",
    "batches",
    "dropout",
    "record noise",
    "upload noise",
    "central noise",
    "absence",
    "count noise",
    "groups",
    "label noise",
    "turned noise",
)
NOISE = ("record noise", "upload noise", "central noise", "count noise", "label noise", "turned noise")
SECRET = tuple(purpose for purpose in PURPOSES if purpose not in ("model", "dropout", "groups"))
"""The purposes whose draws nobody may know, for privacy rests on that; absences tell who takes part."""


@dataclass(frozen=True)
class Schedule:
    """The random choices that follow from one seed; the secret ones do so only where randomness is "seeded".

    Attributes:
        noise_key: the digest of the run that its noise follows from beside the seed, in hexadecimal; empty for noise
            that follows from the seed alone.
    """

    seed: int
    randomness: str = "seeded"
    noise_key: str = field(default="", kw_only=True)

    def generator(self, purpose: str, round_: int = 0, client: int = 0) -> np.random.Generator:
        """A generator of its own for every purpose, round and client.

        It is NumPy's, not torch's: torch's CPU generator keeps 32 bits of its seed, so that among some ten thousand
        draws two would be the same, and noise that comes twice can be subtracted.
        """
        if self.randomness == "system" and purpose in SECRET:
            return cast(np.random.Generator, SystemGenerator())  # it has those of the methods that are called
        return np.random.Generator(np.random.PCG64(self._entropy(purpose, round_, client)))

    def number(self, purpose: str, round_: int = 0, client: int = 0) -> int:
        """A seed of 63 bits, for generators that are seeded with a number."""
        return int(self._entropy(purpose, round_, client).generate_state(1, np.uint64)[0]) >> 1

    def keys(self, purpose: str, round_: int, clients: Sequence[int]) -> npt.NDArray[np.int64]:
        """(K,) keys of 63 bits for counter-based generators of these clients, all drawn at once.

        A client's is that of its number in the stream of the round, a SplitMix64; the operating system's where that has
        to be asked.
        """
        if self.randomness == "system" and purpose in SECRET:
            drawn = np.frombuffer(os.urandom(8 * len(clients)), np.uint64)
        else:
            seed = self._entropy(purpose, round_, 0).generate_state(1, np.uint64).astype(np.uint64)
            drawn = splitmix64(seed, np.asarray(clients, np.uint64))
        return (drawn >> np.uint64(1)).astype(np.int64)

    def _entropy(self, purpose: str, round_: int, client: int) -> np.random.SeedSequence:
        key = self._key_words if self.noise_key and purpose in NOISE else []
        words = [*words_of(self.seed), PURPOSES.index(purpose), *words_of(round_), *words_of(client), *key]
        return np.random.SeedSequence(np.array(words, dtype=np.uint32))

    @cached_property
    def _key_words(self) -> list[int]:
        return words_of(int(self.noise_key, 16))

    def groups(self, clients: int, groups: int) -> np.ndarray:
        """(N,) the group of each client, which depends on nothing but the seed and the client's number.

        Of every g clients with consecutive numbers each group has one.
        """
        keys = self.generator("groups").random((ceil(clients / groups), groups))
        return keys.argsort(1).ravel()[:clients]

    def cohort(self, round_: int, clients: int, size: int, sampling: str, groups: int | None = None) -> list[int]:
        """The clients of a round, ascending; under Poisson sampling there may be none.

        groups: g of cyclic sampling, a group of which is in whole where it has no more than K clients.
        """
        generator = self.generator("cohort", round_)
        if sampling == "poisson":
            return np.flatnonzero(generator.random(clients) < size / clients).tolist()
        if sampling == "cyclic":
            assert groups is not None
            turn = np.flatnonzero(self.groups(clients, groups) == round_ % groups)
            return turn[generator.random(turn.size) < size * groups / clients].tolist()
        return sorted(generator.permutation(clients)[:size].tolist())

    def reporting(self, round_: int, cohort: list[int], dropout: float) -> list[int]:
        """The clients of the cohort that report; each drops out with probability `dropout`, independently."""
        return [k for k in cohort if dropout == 0 or self.generator("absence", round_, k).random() >= dropout]

    def batches(self, round_: int, client: int, records: int, epochs: int, size: int) -> Tensor:
        """(steps, size) positions among the client's records, a new order every epoch; -1 fills its last batch."""
        steps = ceil(records / size)
        generator = self.generator("batches", round_, client)
        positions = torch.full((epochs, steps * size), -1, dtype=torch.int64)
        for epoch in range(epochs):
            positions[epoch, :records] = torch.from_numpy(generator.permutation(records))
        return positions.view(epochs * steps, size)

    def poisson_batches(self, round_: int, client: int, records: int, epochs: int, size: int) -> Tensor:
        """(steps, largest) positions, each record in each batch with probability 1 / ceil(records / size).

        Rows are filled up with -1; a batch may be empty.
        """
        per_epoch = ceil(records / size)
        generator = self.generator("batches", round_, client)
        return positions_of(torch.from_numpy(generator.random((epochs * per_epoch, records)) < 1 / per_epoch))

    def dropout_masks(
        self, round_: int, client: int, rows: tuple[int, int], shape: tuple[int, ...], keep: float
    ) -> Tensor:
        """(steps, batch, *shape) masks of 0 and 1 / keep; rows: (steps, batch)."""
        generator = self.generator("dropout", round_, client)
        drawn = torch.from_numpy(generator.random((*rows, *shape), dtype=np.float32))
        return drawn.lt_(keep).mul_(1 / keep)


def words_of(number: int) -> list[int]:
    """A number's words of 32 bits, lowest first; SeedSequence would cut it into the same, in ten times the time."""
    return [number >> shift & 0xFFFFFFFF for shift in range(0, max(number.bit_length(), 1), 32)]


def splitmix64(seed: npt.NDArray[np.uint64], places: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The numbers at these places, counted from 0, of the generator SplitMix64 (Steele, Lea and Flood 2014)."""
    state = seed + (places + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return state ^ state >> np.uint64(31)


def positions_of(taken: Tensor) -> Tensor:
    """(steps, largest) positions of the records that each step takes, ascending, then -1; taken: (steps, records)."""
    records = taken.shape[1]
    order = torch.where(taken, torch.arange(records, device=taken.device), records).sort(1).values
    order = order[:, : max(1, int(taken.sum(1).max()))]
    return torch.where(order < records, order, -1)

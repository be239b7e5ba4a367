"""Batches and dropout masks drawn on a GPU, without a way over the host.

Every draw comes from a Philox stream of its own whose key the Schedule gives for the same purpose, round and client. So
the draws still follow from the seed alone, and from the operating system where randomness is "system"; they are not
those that the Schedule gives on a CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from math import ceil

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedceo.training.schedule import Schedule

HAS_TRITON = find_spec("triton") is not None  # torch for a CPU, and for some systems, comes without

Integers = npt.NDArray[np.int64]
BITS = 63
"""Bits of a random number, so that it fits a signed integer."""
ORDER_BITS = 40
"""Bits of the numbers whose order is that of records in an epoch; the rest of 63 number clients and epochs."""


def draw_key(generator: np.random.Generator) -> int:
    """A key for a counter-based generator."""
    return int(generator.integers(2**BITS))


@dataclass(frozen=True)
class DeviceDraws:
    """The Schedule's batches and masks on a device, with other draws; each is a function of the same things.

    Batches are drawn for many clients at once, for on a GPU each of many small operations takes as long as a large one.
    `records` and `sizes` say how many records each client has, and how many a batch of its has.
    """

    schedule: Schedule
    device: torch.device

    def batches(
        self, round_: int, clients: Sequence[int], records: Sequence[int], epochs: int, sizes: Sequence[int]
    ) -> list[Tensor]:
        """For each client what Schedule.batches gives; one sort of random numbers makes all orders."""
        steps = [ceil(n / size) for n, size in zip(records, sizes, strict=True)]
        drawn = self._numbers("batches", round_, clients, [epochs * n for n in records]) >> (BITS - ORDER_BITS)
        own, widths = np.repeat(records, epochs), np.repeat(np.multiply(steps, sizes), epochs)
        # a row for every epoch of every client
        lengths, firsts, begins = self._tensor(np.stack([own, _firsts(own), _firsts(widths)]))
        row = torch.repeat_interleave(lengths, output_size=len(drawn))
        order = (row << ORDER_BITS).add_(drawn).argsort(stable=True) - firsts[row]
        out = self._filled(row, order, lengths, begins[row], int(widths.sum()))
        parts = out.split([epochs * n * size for n, size in zip(steps, sizes, strict=True)])
        return [part.view(epochs * n, -1) for part, n in zip(parts, steps, strict=True)]

    def poisson_batches(
        self, round_: int, clients: Sequence[int], records: Sequence[int], epochs: int, sizes: Sequence[int]
    ) -> list[Tensor]:
        """For each client what Schedule.poisson_batches gives, in rows as wide as the largest batch of all clients."""
        per_epoch = [ceil(n / size) for n, size in zip(records, sizes, strict=True)]
        steps = np.array(per_epoch) * epochs
        draws = steps * np.array(records)
        most = [2**BITS // each - 1 for each in per_epoch]  # the part 1 / each of all numbers
        of_client = self._tensor(np.stack([draws, most, _firsts(draws), records, _firsts(steps)]))
        client = torch.repeat_interleave(of_client[0], output_size=int(draws.sum()))
        hit = (self._numbers("batches", round_, clients, draws.tolist()) <= of_client[1][client]).nonzero()[:, 0]
        _, _, first, own, first_row = of_client[:, client[hit]]
        hit -= first
        step = hit // own
        row = step + first_row  # a row for every step of every client
        counts = torch.bincount(row, minlength=steps.sum())
        largest = max(1, int(counts.max()))
        out = self._filled(row, hit - step * own, counts, row * largest, int(steps.sum()) * largest)
        return list(out.view(-1, largest).split(steps.tolist()))

    def dropout_masks(
        self, round_: int, client: int, rows: tuple[int, int], shape: tuple[int, ...], keep: float
    ) -> Tensor:
        """See Schedule.dropout_masks."""
        key = self.mask_keys(round_, [client])
        if self._has_kernels:
            from fedceo.training.cuda.draws import fill_masks

            return fill_masks(key, rows, shape, keep)
        self._philox.manual_seed(int(key))
        return torch.empty(*rows, *shape, device=self.device).bernoulli_(keep, generator=self._philox).mul_(1 / keep)

    def mask_keys(self, round_: int, clients: Sequence[int]) -> Tensor:
        """(K,) keys of these clients' dropout masks."""
        return self._tensor(self.schedule.keys("dropout", round_, clients))

    def _numbers(self, purpose: str, round_: int, clients: Sequence[int], counts: Sequence[int]) -> Tensor:
        """Random numbers below 2^63, as many as `counts` says of every client's stream, one client after another."""
        keys = self.schedule.keys(purpose, round_, clients)
        if self._has_kernels:
            from fedceo.training.cuda.draws import fill_numbers

            return fill_numbers(self._tensor(keys), counts)
        drawn = torch.empty(sum(counts), dtype=torch.int64, device=self.device)
        for key, part in zip(keys.tolist(), drawn.split(list(counts)), strict=True):
            part.random_(generator=self._philox.manual_seed(key))
        return drawn

    @property
    def _has_kernels(self) -> bool:
        return HAS_TRITON and self.device.type == "cuda"

    @cached_property
    def _philox(self) -> torch.Generator:
        return torch.Generator(self.device)

    def _filled(self, row: Tensor, values: Tensor, counts: Tensor, begins: Tensor, size: int) -> Tensor:
        """Rows, one after another, each with its values in front and then -1.

        Args:
            row: (E,) the row of each value, ascending.
            counts: (R,) how many values each row has.
            begins: (E,) where the row of each value begins.
            size: of all rows together.
        """
        within = torch.arange(len(row), device=self.device) - (counts.cumsum(0) - counts)[row]
        out = torch.full((size,), -1, dtype=torch.int64, device=self.device)
        out[begins + within] = values
        return out

    def _tensor(self, numbers: Integers) -> Tensor:
        return torch.from_numpy(numbers).to(self.device)


def _firsts(lengths: Integers) -> Integers:
    """Where each of several parts that follow one another begins."""
    return np.cumsum(lengths) - lengths

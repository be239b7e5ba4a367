"""Batches and dropout masks drawn on a GPU, without a way over the host.

Every draw comes from a Philox stream of its own whose key is drawn from the Schedule's generator for the same
purpose, round and client. So the draws still follow from the seed alone, and from the operating system where randomness
is "system"; they are not those that the Schedule gives on a CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedceo.training.schedule import Schedule

Integers = npt.NDArray[np.int64]
RANDOM_BITS = 40
"""Bits of the numbers whose order is that of records in an epoch; the rest of 63 number clients and epochs."""


def draw_key(generator: np.random.Generator) -> int:
    """A key for a counter-based generator: 63 bits, so that it fits a signed integer."""
    return int(generator.integers(2**63))


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
        drawn = torch.empty(epochs * sum(records), dtype=torch.int64, device=self.device)
        for client, part in zip(clients, drawn.split([epochs * n for n in records]), strict=True):
            part.random_(1 << RANDOM_BITS, generator=self._generator("batches", round_, client))
        lengths = np.repeat(records, epochs)  # a row for every epoch of every client
        row = torch.repeat_interleave(self._tensor(lengths), output_size=len(drawn))
        order = (row << RANDOM_BITS).add_(drawn).argsort(stable=True)
        width = np.repeat(np.multiply(steps, sizes), epochs)
        out = self._filled(row, order - self._tensor(_firsts(lengths))[row], self._tensor(lengths), width)
        parts = out.split([epochs * n * size for n, size in zip(steps, sizes, strict=True)])
        return [part.view(epochs * n, -1) for part, n in zip(parts, steps, strict=True)]

    def poisson_batches(
        self, round_: int, clients: Sequence[int], records: Sequence[int], epochs: int, sizes: Sequence[int]
    ) -> list[Tensor]:
        """For each client what Schedule.poisson_batches gives."""
        per_epoch = [ceil(n / size) for n, size in zip(records, sizes, strict=True)]
        steps = np.array(per_epoch) * epochs
        draws = steps * np.array(records)
        taken = torch.empty(draws.sum(), dtype=torch.bool, device=self.device)
        for client, part, each in zip(clients, taken.split(draws.tolist()), per_epoch, strict=True):
            generator = self._generator("batches", round_, client)
            drawn = torch.rand(len(part), generator=generator, dtype=torch.float64, device=self.device)
            torch.lt(drawn, 1 / each, out=part)
        hit = taken.nonzero()[:, 0]
        owner = torch.bucketize(hit, self._tensor(np.cumsum(draws)), right=True)
        hit -= self._tensor(_firsts(draws))[owner]
        step = hit // self._tensor(records)[owner]
        row = step + self._tensor(_firsts(steps))[owner]  # a row for every step of every client
        counts = torch.bincount(row, minlength=steps.sum())
        largest = np.maximum.reduceat(counts.cpu().numpy(), _firsts(steps)).clip(1)
        out = self._filled(row, hit - step * self._tensor(records)[owner], counts, np.repeat(largest, steps))
        parts = zip(out.split((steps * largest).tolist()), largest.tolist(), strict=True)
        return [part.view(-1, width) for part, width in parts]

    def dropout_masks(
        self, round_: int, client: int, rows: tuple[int, int], shape: tuple[int, ...], keep: float
    ) -> Tensor:
        """See Schedule.dropout_masks."""
        generator = self._generator("dropout", round_, client)
        return torch.empty(*rows, *shape, device=self.device).bernoulli_(keep, generator=generator).mul_(1 / keep)

    def _generator(self, purpose: str, round_: int, client: int) -> torch.Generator:
        return self._philox.manual_seed(draw_key(self.schedule.generator(purpose, round_, client)))

    @cached_property
    def _philox(self) -> torch.Generator:
        return torch.Generator(self.device)

    def _filled(self, row: Tensor, values: Tensor, counts: Tensor, widths: Integers) -> Tensor:
        """Rows of unequal widths, one after another, each with its values in front and then -1.

        Args:
            row: (E,) the row of each value, ascending.
            counts: (R,) how many values each row has.
        """
        within = torch.arange(len(row), device=self.device) - (counts.cumsum(0) - counts)[row]
        out = torch.full((widths.sum(),), -1, dtype=torch.int64, device=self.device)
        out[self._tensor(_firsts(widths))[row] + within] = values
        return out

    def _tensor(self, numbers: Integers | Sequence[int]) -> Tensor:
        return torch.as_tensor(numbers, dtype=torch.int64).to(self.device)


def _firsts(lengths: Integers) -> Integers:
    """Where each of several parts that follow one another begins."""
    return np.cumsum(lengths) - lengths

"""Batches and dropout masks drawn on a GPU: the Schedule's questions, answered without a way over the host.

Every answer comes from a Philox generator of its own whose 64-bit key is drawn from the Schedule's generator for the
same purpose, round and client. So the answers still follow from the seed alone, and from the operating system where
randomness is "system"; they are not those that the Schedule gives on a CPU.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from torch import Tensor

from fedceo.training.schedule import Schedule


def draw_key(generator: np.random.Generator) -> int:
    """A key for a counter-based generator: 63 bits, so that it fits a signed integer."""
    return int(generator.integers(2**63))


@dataclass(frozen=True)
class DeviceDraws:
    """Answers like the Schedule's, on the device; each is a function of the same things."""

    schedule: Schedule
    device: torch.device

    def batches(self, round_: int, client: int, records: int, epochs: int, size: int) -> Tensor:
        """As Schedule.batches."""
        steps = ceil(records / size)
        places = torch.full((epochs, steps * size), -1, dtype=torch.int64, device=self.device)
        places[:, :records] = self._uniform("batches", round_, client, (epochs, records), torch.float64).argsort(1)
        return places.view(epochs * steps, size)

    def poisson_batches(self, round_: int, client: int, records: int, epochs: int, size: int) -> Tensor:
        """As Schedule.poisson_batches."""
        per_epoch = ceil(records / size)
        drawn = self._uniform("batches", round_, client, (epochs * per_epoch, records), torch.float64)
        taken = drawn < 1 / per_epoch
        order = torch.where(taken, torch.arange(records, device=self.device), records).sort(1).values
        order = order[:, : max(1, int(taken.sum(1).max()))]
        return torch.where(order < records, order, -1)

    def dropout_masks(
        self, round_: int, client: int, rows: tuple[int, int], shape: tuple[int, ...], keep: float
    ) -> Tensor:
        """As Schedule.dropout_masks."""
        drawn = self._uniform("dropout", round_, client, (*rows, *shape), torch.float32)
        return drawn.lt_(keep).mul_(1 / keep)

    def _uniform(self, purpose: str, round_: int, client: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        philox = torch.Generator(self.device)
        philox.manual_seed(draw_key(self.schedule.generator(purpose, round_, client)))
        return torch.rand(shape, generator=philox, dtype=dtype, device=self.device)

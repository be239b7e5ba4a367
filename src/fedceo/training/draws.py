"""Batches and dropout masks drawn on a GPU, without a way over the host.

Every draw comes from a Philox generator of its own whose key is drawn from the Schedule's generator for the same
purpose, round and client. So the draws still follow from the seed alone, and from the operating system where randomness
is "system"; they are not those that the Schedule gives on a CPU.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from torch import Tensor

from fedceo.training.schedule import Schedule, positions_of


def draw_key(generator: np.random.Generator) -> int:
    """A key for a counter-based generator: 63 bits, so that it fits a signed integer."""
    return int(generator.integers(2**63))


@dataclass(frozen=True)
class DeviceDraws:
    """The Schedule's batches and masks on a device, with other draws; each is a function of the same things."""

    schedule: Schedule
    device: torch.device

    def batches(self, round_: int, client: int, records: int, epochs: int, size: int) -> Tensor:
        """See Schedule.batches."""
        steps = ceil(records / size)
        positions = torch.full((epochs, steps * size), -1, dtype=torch.int64, device=self.device)
        positions[:, :records] = self._uniform("batches", round_, client, (epochs, records), torch.float64).argsort(1)
        return positions.view(epochs * steps, size)

    def poisson_batches(self, round_: int, client: int, records: int, epochs: int, size: int) -> Tensor:
        """See Schedule.poisson_batches."""
        per_epoch = ceil(records / size)
        drawn = self._uniform("batches", round_, client, (epochs * per_epoch, records), torch.float64)
        return positions_of(drawn < 1 / per_epoch)

    def dropout_masks(
        self, round_: int, client: int, rows: tuple[int, int], shape: tuple[int, ...], keep: float
    ) -> Tensor:
        """See Schedule.dropout_masks."""
        drawn = self._uniform("dropout", round_, client, (*rows, *shape), torch.float32)
        return drawn.lt_(keep).mul_(1 / keep)

    def _uniform(self, purpose: str, round_: int, client: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        philox = torch.Generator(self.device)
        philox.manual_seed(draw_key(self.schedule.generator(purpose, round_, client)))
        return torch.rand(shape, generator=philox, dtype=dtype, device=self.device)

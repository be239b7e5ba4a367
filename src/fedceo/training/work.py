"""What a client does in a round, and what comes back: the contract that every trainer keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from fedceo.data import Federation
from fedceo.training.schedule import Schedule

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class RecordPrivacy:
    """DP-SGD inside local training: every record's gradient is clipped, the sum is noised.

    Attributes:
        clip: C, the largest L2 norm of a record's gradient over all parameters.
        noise_multiplier: sigma; the noise on the sum has standard deviation sigma * C.
    """

    clip: float
    noise_multiplier: float


@dataclass(frozen=True)
class Work:
    """Local training of one round: SGD with momentum from a zero buffer.

    Attributes:
        epochs: E.
        batch_size: B; under record privacy the batches are Poisson with rate 1 / ceil(n / B).
        learning_rate: eta.
        momentum: of the SGD buffer.
        record: DP-SGD, or none for plain SGD.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float = 0.0
    record: RecordPrivacy | None = None


@dataclass(frozen=True)
class Trained:
    """A cohort after local training.

    Attributes:
        weights: name -> (K, ...), in the order of the clients given.
        losses: (K,) mean training loss of each client over the round.
    """

    weights: dict[str, Tensor]
    losses: Tensor


class Trainer(Protocol):
    """Trains a cohort: the same answer from every implementation, given the same Schedule."""

    def train(self, starts: Weights, clients: Sequence[int], round_: int, work: Work) -> Trained:
        """starts: name -> (K, ...); clients: K client numbers; round_: counted from 1."""


@dataclass(frozen=True)
class Place:
    """Where and on what a trainer works."""

    model: nn.Module
    federation: Federation
    schedule: Schedule
    device: torch.device
    dtype: torch.dtype

    def records(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's training records as the model takes them, (n, *shape), and their labels, (n,)."""
        mine = self.federation.train[client]
        x = self.federation.inputs(self.federation.x[mine].to(self.device), self.dtype)
        return x, self.federation.y[mine].to(self.device)

    def plan(self, client: int, round_: int, work: Work) -> tuple[Tensor, Tensor | None]:
        """A client's batches, (steps, batch) places in its own records with -1 for none, and its dropout masks."""
        records = len(self.federation.train[client])
        draw = self.schedule.poisson_batches if work.record else self.schedule.batches
        batches = draw(round_, client, records, work.epochs, work.batch_size)
        shape = getattr(self.model, "mask_shape", None)
        if shape is None:
            return batches, None
        steps, batch = batches.shape
        keep = float(self.model.keep)  # type: ignore[arg-type]
        masks = self.schedule.dropout_masks(round_, client, (steps, batch), tuple(shape), keep)
        return batches, masks.to(self.dtype)

    def expected_batch(self, client: int, work: Work) -> float:
        """n / ceil(n / B): what the noised sum is divided by under record privacy."""
        records = len(self.federation.train[client])
        return records / -(-records // work.batch_size)

"""What a client does in a round, and what comes back: the contract that every trainer keeps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from torch import Tensor

from fedceo.experiment.file import Experiment
from fedceo.tensors.weights import Weights

ALL_RECORDS = 2**62
"""The batch size that takes in all of a client's records."""
BARE_FIELDS = frozenset({"epochs", "batch_size", "learning_rate", "outside_radius", "steps", "phase"})
"""The fields of a Work that leave a step w -= eta * gradient; outside_radius means nothing by itself."""
PLAIN_FIELDS = BARE_FIELDS | {"momentum", "record", "proximal"}
"""The fields of a Work that the fused step on a GPU knows."""


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
        proximal: mu; mu * (w - start) is added to every step's gradient, after any noise (FedProx).
        outside, outside_radius: lambda (w - start) likewise, where w is farther from the start than the radius.
        radius: after every step a model farther from its start than this is put back to that distance.
        ascent: rho; gradients are taken at w + rho g / |g|, with g the gradient at w or, under record privacy, the
            noised one of the step before.
        only: names of the parameters that train, the others stay; none: all train.
        steps: at most so many steps.
        phase: which part of the round this is; each has batches, masks and noise of its own.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float = 0.0
    record: RecordPrivacy | None = None
    proximal: float = 0.0
    outside: float = 0.0
    outside_radius: float = 0.0
    radius: float | None = None
    ascent: float = 0.0
    only: frozenset[str] | None = None
    steps: int | None = None
    phase: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether a step is that of SGD, with or without momentum, record-level noise and a proximal term.

        A Work with any other field set is not plain, so that a new field is never overlooked by a step that is fused.
        """
        return self._sets_only(PLAIN_FIELDS)

    @property
    def is_bare(self) -> bool:
        """Whether a step is w -= eta * gradient and nothing else."""
        return self._sets_only(BARE_FIELDS)

    def _sets_only(self, names: frozenset[str]) -> bool:
        return all(field.name in names or getattr(self, field.name) == field.default for field in fields(self))

    def moment(self, round_: int) -> int:
        """The number under which the Schedule keeps this part of the round."""
        return round_ + (self.phase << 32)


def local_work(experiment: Experiment, t: int, noise_multiplier: float) -> Work:
    """Local training in round t as the experiment says, before the method has its say."""
    train, privacy = experiment.train, experiment.privacy
    record = RecordPrivacy(privacy.clip, noise_multiplier) if privacy.mechanism == "record" else None
    rate = train.learning_rate * schedule_factor(train.schedule, t, train.rounds)
    return Work(train.local_epochs, train.batch_size, rate, train.momentum, record, train.proximal)


def schedule_factor(schedule: str, t: int, rounds: int) -> float:
    """What the client's learning rate is multiplied by in round t of T: 1 in the first, 0.01 in the last."""
    if schedule == "constant" or rounds == 1:
        return 1.0
    done = (t - 1) / (rounds - 1)
    left = 1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return 0.01 + 0.99 * left


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

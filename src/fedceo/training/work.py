"""The contract that every trainer keeps: the work of a client in a round, and the result."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from torch import Tensor

from fedceo.experiment.sections import Train
from fedceo.tensors.weights import Weights

ALL_RECORDS = 2**62
"""The batch size that takes in all of a client's records."""
BARE_FIELDS = frozenset({"epochs", "batch_size", "learning_rate", "outside_radius", "steps", "phase", "worth"})
"""The fields of a Work that leave a step w -= eta * gradient; outside_radius means nothing by itself."""
PLAIN_FIELDS = BARE_FIELDS | {"momentum", "record", "proximal", "anchor"}
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
    """Local training of one round: SGD with momentum from a zero buffer, or another optimiser from zero moments.

    Attributes:
        epochs: E, passes over the client's records.
        batch_size: B, records in a batch; under record privacy batches are Poisson with rate 1 / ceil(n / B).
        learning_rate: eta.
        momentum: the factor of the SGD buffer in every step.
        record: DP-SGD, or None for plain SGD.
        proximal: mu; mu * (w - start) is added to every step's gradient, after any noise (FedProx).
        outside: lambda; lambda * (w - start) likewise, where w is farther from the start than outside_radius (L2).
        outside_radius: the distance from which `outside` acts.
        radius: the L2 distance from the start to which a model that is farther is put back after every step, or None.
        ascent: rho; gradients are taken at w + rho g / |g|, with g the gradient at w or, under record privacy, the
            noised gradient of the step before.
        only: names of the parameters that train while the others stay, or None if all train.
        steps: the largest number of steps, or None.
        phase: the number of this part of the round; each part has batches, masks and noise of its own.
        optimizer: sgd, adam or adamw.
        weight_decay: lambda; lambda * w is added to every step's gradient, after any noise, or with adamw w shrinks by
            eta * lambda * w beside the step. Parameters that do not train do not decay.
        anchor: name -> (K, ...), the models that the terms look back at in the place of each client's start, or None.
        shift: name -> (K, ...), the way that each client goes beside its gradients, in equal parts over its steps and
            past any momentum, or None.
        worth: the number of steps that every client's change shall count for, however many it took: after the last
            one the change is scaled (see `terms.rescaled`); None: it counts as it is.
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
    optimizer: str = "sgd"
    weight_decay: float = 0.0
    anchor: Weights | None = field(default=None, hash=False)
    shift: Weights | None = field(default=None, hash=False)
    worth: float | None = None

    @property
    def is_plain(self) -> bool:
        """Whether a step is that of SGD, with or without momentum, record-level noise and a proximal term.

        A Work with any other field set is not plain, so that a new field is never overlooked by a step that is fused.
        """
        return self._sets_only(PLAIN_FIELDS)

    @property
    def is_bare(self) -> bool:
        """Whether a step is w -= eta * gradient and nothing else, be it for some parameters only."""
        return self._sets_only(BARE_FIELDS | {"only"})

    @property
    def is_rotatable(self) -> bool:
        """Whether a step moves weights along gradients, noise and straight pulls alone, and reads no other direction.

        Lengths are known in any basis of gradients as long as nothing else moves: no noise, no pull to another model.
        """
        lengths = {"ascent", "radius", "outside"} if self.record is None and self.anchor is None else set()
        return self._sets_only(PLAIN_FIELDS | {"only"} | lengths)

    @property
    def is_adaptive(self) -> bool:
        """Whether steps have moments of gradients."""
        return self.optimizer != "sgd"

    @property
    def added_decay(self) -> float:
        """The weight decay that is a part of the gradient."""
        return 0.0 if self.optimizer == "adamw" else self.weight_decay

    @property
    def separate_decay(self) -> float:
        """The weight decay that is beside the gradient."""
        return self.weight_decay if self.optimizer == "adamw" else 0.0

    @property
    def kind(self) -> "Work":
        """The same Work without all that differs by client in a cohort's buffers: equal kinds take equal steps."""
        record = None if self.record is None else RecordPrivacy(0.0, 0.0)
        shift: Weights | None = None if self.shift is None else {}
        blank = replace(self, epochs=0, batch_size=0, learning_rate=0.0, record=record, steps=None, phase=0)
        return replace(blank, anchor=None, shift=shift, worth=None)

    def of(self, rows: Any) -> "Work":
        """The Work of some of the K clients; rows: an index of the first axis, such as a slice."""

        def some(models: Weights | None) -> Weights | None:
            return None if models is None else {name: w[rows] for name, w in models.items()}

        if self.anchor is None and self.shift is None:
            return self
        return replace(self, anchor=some(self.anchor), shift=some(self.shift))

    def _sets_only(self, names: frozenset[str]) -> bool:
        return all(each.name in names or getattr(self, each.name) == each.default for each in fields(self))

    def one_gradient(self, of_all: bool = False) -> "Work":
        """One step of rate 1, whose update is minus the gradient of one batch, or of all records."""
        size = ALL_RECORDS if of_all else self.batch_size
        bare = replace(self, momentum=0.0, optimizer="sgd", weight_decay=0.0)
        return replace(bare, epochs=1, steps=1, batch_size=size, learning_rate=1.0)

    def passes(self, records: int) -> float:
        """The passes over so many records that the steps amount to."""
        return self.epochs if self.steps is None else min(self.epochs, self.steps * self.batch_size / records)

    def moment(self, round_: int) -> int:
        """The number that stands for this part of the round in the Schedule."""
        return round_ + (self.phase << 32)


def local_work(train: Train, t: int, record: RecordPrivacy | None = None) -> Work:
    """Local training in round t as the experiment says, before the method has its say; record: the mechanism's."""
    rate = train.learning_rate * schedule_factor(train.schedule, t, train.rounds)
    work = Work(train.local_epochs, train.batch_size, rate, train.momentum, record, train.proximal)
    return replace(work, optimizer=train.optimizer, weight_decay=train.weight_decay)


def schedule_factor(schedule: str, t: int, rounds: int) -> float:
    """The factor of the client's learning rate in round t of T: 1 in the first, 0.01 in the last unless constant."""
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
    """A way to train a cohort; given the same Schedule, every implementation gives the same answer."""

    def train(self, starts: Weights, clients: Sequence[int], round_: int, work: Work) -> Trained:
        """Train the K clients, each from its row of starts, name -> (K, ...); rounds count from 1."""

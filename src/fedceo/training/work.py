"""What a client does in a round, and what comes back: the contract that every trainer keeps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

from fedceo.config import Experiment
from fedceo.data import Federation
from fedceo.training.draws import DeviceDraws
from fedceo.training.schedule import Schedule

Weights = Mapping[str, Tensor]

MOST_READY_BYTES = 2**30
"""Records are normalised once and kept up to this size (CIFAR-10 takes 0.6 GiB in float32), else batch by batch.

On a GPU they may take an eighth of its memory.
"""


ALL_RECORDS = 2**62
"""The batch size that takes in all of a client's records."""


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
        """Whether a step is that of SGD, with or without noise and a proximal term."""
        return not (self.outside or self.radius is not None or self.ascent or self.only is not None)

    @property
    def is_bare(self) -> bool:
        """Whether a step is w -= eta * gradient and nothing else."""
        return self.is_plain and not (self.momentum or self.proximal or self.record)

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


@dataclass(frozen=True)
class Place:
    """Where and on what a trainer works.

    Attributes:
        ready: what `inputs` would make, where somebody has made it already.
    """

    model: nn.Module
    federation: Federation
    schedule: Schedule
    device: torch.device
    dtype: torch.dtype
    ready: Tensor | None = None

    @cached_property
    def draws(self) -> Schedule | DeviceDraws:
        """Where batches and dropout masks come from: the Schedule on a CPU, the device itself otherwise."""
        return self.schedule if self.device.type == "cpu" else DeviceDraws(self.schedule, self.device)

    @cached_property
    def inputs(self) -> Tensor | None:
        """All records as the model takes them and a last one of zeros, on its device, where they are few enough."""
        if self.ready is not None:
            return self.ready
        data, most = self.federation, MOST_READY_BYTES
        if self.device.type == "cuda":
            most = torch.cuda.get_device_properties(self.device).total_memory // 8
        if data.x.numel() * self.dtype.itemsize > most:
            return None
        ready = torch.zeros(len(data.x) + 1, *self.federation.shape, dtype=self.dtype, device=self.device)
        ready[:-1] = data.inputs(data.x.to(self.device), self.dtype)
        return ready

    @cached_property
    def _labels(self) -> Tensor:
        return torch.cat([self.federation.y, self.federation.y.new_zeros(1)]).to(self.device)

    @property
    def blank(self) -> int:
        """The place of a record of zeros, which fills batches up."""
        return len(self.federation.x)

    def records(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """The federation's records at some places as the model takes them, (..., *shape), and their labels."""
        labels = self._labels[places]
        if self.inputs is not None:
            # index_select is three times faster here than the same by brackets
            flat = self.inputs.index_select(0, places.flatten())
            return flat.view(*places.shape, *self.federation.shape), labels
        here = places.to(self.federation.x.device)
        inputs = self.federation.inputs(self.federation.x[here.clamp_max(self.blank - 1)].to(self.device), self.dtype)
        filling = (places == self.blank).view(*places.shape, *(1,) * len(self.federation.shape))
        return inputs.masked_fill_(filling, 0.0), labels

    def make_ready(self) -> bool:
        """Normalises all records now, where they may be kept; whether `records` then reads nothing but the device."""
        return self.inputs is not None

    def plan(self, client: int, round_: int, work: Work) -> tuple[Tensor, Tensor | None]:
        """A client's batches, (steps, batch) places in the federation's records with -1 for none, and dropout masks."""
        mine = self.federation.train[client].to(self.device)
        draw = self.draws.poisson_batches if work.record else self.draws.batches
        moment = work.moment(round_)
        size = len(mine) if work.batch_size == ALL_RECORDS else work.batch_size
        local = draw(moment, client, len(mine), work.epochs, size)[: work.steps]
        places = torch.where(local >= 0, mine[local.clamp_min(0)], -1)
        shape = getattr(self.model, "mask_shape", None)
        if shape is None:
            return places, None
        keep = float(self.model.keep)  # type: ignore[arg-type]
        masks = self.draws.dropout_masks(moment, client, (len(places), places.shape[1]), tuple(shape), keep)
        return places, masks.to(self.dtype)

    def expected_batch(self, client: int, work: Work) -> float:
        """n / ceil(n / B): what the noised sum is divided by under record privacy."""
        records = len(self.federation.train[client])
        return records / -(-records // work.batch_size)

"""Broken mechanisms, schedules and methods, each with one fault that an audit must find."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedceo.mechanisms.base import Mechanism
from fedceo.mechanisms.clipping import clip_updates
from fedceo.mechanisms.distributed import Distributed
from fedceo.mechanisms.uploads import Contribution, Senders, Stack, Uploads
from fedceo.methods.base import State
from fedceo.methods.fedceo import FedCEO
from fedceo.tensors.weights import Weights
from fedceo.training.schedule import Schedule

NOISES = ("record noise", "upload noise", "central noise", "turned noise")


@dataclass(frozen=True)
class SharedBetweenClients(Schedule):
    def generator(self, purpose: str, round_: int = 0, client: int = 0) -> np.random.Generator:
        return super().generator(purpose, round_, 0 if purpose in NOISES else client)


@dataclass(frozen=True)
class RepeatedEveryRound(Schedule):
    def generator(self, purpose: str, round_: int = 0, client: int = 0) -> np.random.Generator:
        return super().generator(purpose, 0 if purpose in NOISES else round_, client)


def copy(made: Mechanism, kind: type[Mechanism] | None = None, **changes: Any) -> Any:
    """The mechanism as another class, or with other settings."""
    return (kind or type(made))(**({field.name: getattr(made, field.name) for field in fields(Mechanism)} | changes))


def weakened(factor: float) -> "Fault":
    """Noise that is too small by a factor, while the mechanism says otherwise."""

    def fault(made: Mechanism) -> Mechanism:
        @dataclass(frozen=True)
        class Weak(type(made)):  # type: ignore[misc]
            def privatise(self, sent: Contribution, senders: Senders, origin: Weights) -> Uploads:
                weak = copy(made, noise_multiplier=self.noise_multiplier * factor, schedule=self.schedule)
                return weak.privatise(sent, senders, origin)

        return copy(made, Weak)

    return fault


class Recombined(Distributed):
    """The clipped update and its noise, put together wrongly."""

    def privatise(self, sent: Contribution, senders: Senders, origin: Weights) -> Stack:
        starts, trained = sent.start, sent.trained
        noised = super().privatise(Contribution(starts, starts), senders, origin)
        noise = {name: (w - starts[name]) / self.step for name, w in noised.weights.items()}
        moved = self.combine({name: trained[name] - start for name, start in starts.items()}, noise)
        uploads = self.cast({name: w + self.step * moved[name] for name, w in starts.items()})
        return Stack(uploads, senders.clients, senders.sizes, 0)

    def combine(self, updates: Weights, noise: Weights) -> dict[str, Tensor]:
        raise NotImplementedError

    def cast(self, uploads: dict[str, Tensor]) -> dict[str, Tensor]:
        return uploads


class ClipAfterNoise(Recombined):
    def combine(self, updates: Weights, noise: Weights) -> dict[str, Tensor]:
        return clip_updates({name: u + noise[name] for name, u in updates.items()}, self.clip)


class NoClipping(Recombined):
    def combine(self, updates: Weights, noise: Weights) -> dict[str, Tensor]:
        return {name: u + noise[name] for name, u in updates.items()}


class ClipEachTensor(Recombined):
    def combine(self, updates: Weights, noise: Weights) -> dict[str, Tensor]:
        return {name: clip_updates({name: u}, self.clip)[name] + noise[name] for name, u in updates.items()}


class OneTensorBare(Recombined):
    def combine(self, updates: Weights, noise: Weights) -> dict[str, Tensor]:
        bare = next(iter(updates))
        clipped = clip_updates(updates, self.clip)
        return {name: u if name == bare else u + noise[name] for name, u in clipped.items()}


class HalfPrecisionNoise(Recombined):
    kept = torch.float16

    def combine(self, updates: Weights, noise: Weights) -> dict[str, Tensor]:
        clipped = clip_updates(updates, self.clip)
        return {name: u + noise[name].to(self.kept).to(u.dtype) for name, u in clipped.items()}


class BrainPrecisionNoise(HalfPrecisionNoise):
    kept = torch.bfloat16


class BrainPrecisionUploads(Recombined):
    def combine(self, updates: Weights, noise: Weights) -> dict[str, Tensor]:
        return {name: u + noise[name] for name, u in clip_updates(updates, self.clip).items()}

    def cast(self, uploads: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: u.to(torch.bfloat16).to(u.dtype) for name, u in uploads.items()}


Fault = Callable[[Mechanism], Mechanism]

FAULTS: dict[str, Fault] = {
    "no noise": lambda made: weakened(0.0)(made),
    "half noise": lambda made: weakened(0.5)(made),
    "clip after noise": lambda made: copy(made, ClipAfterNoise),
    "shared between clients": lambda made: copy(made, schedule=SharedBetweenClients(made.schedule.seed)),
    "repeated between rounds": lambda made: copy(made, schedule=RepeatedEveryRound(made.schedule.seed)),
    "an extra 1/sqrt(K)": lambda made: weakened(made.min_reports**-0.5)(made),
    "no clipping": lambda made: copy(made, NoClipping),
}
"""Faults that the canaries find, and the check of the mechanism too."""

SUBTLE_FAULTS: dict[str, Fault] = {
    "float16 noise": lambda made: copy(made, HalfPrecisionNoise),
    "bfloat16 noise": lambda made: copy(made, BrainPrecisionNoise),
    "bfloat16 uploads": lambda made: copy(made, BrainPrecisionUploads),
    "5 % too little noise": lambda made: weakened(0.95)(made),
    "one tensor bare": lambda made: copy(made, OneTensorBare),
}
"""Faults that the check of the mechanism finds on a model of some thousand parameters."""


def leak_personal_models(simulation: Any) -> None:
    """Clients are handed models that were smoothed without the noise; all else is as it should be."""
    bare: list[Stack] = []

    class Spy(Distributed):
        def privatise(self, sent: Contribution, senders: Senders, origin: Weights) -> Stack:
            bare.append(copy(self, Distributed, noise_multiplier=0.0).privatise(sent, senders, origin))
            return super().privatise(sent, senders, origin)

    class Leaky(FedCEO):
        def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
            after, about = super().aggregate(state, uploads, round_)
            leaked, _ = super().aggregate(state, bare[-1], round_)
            return replace(after, personal=leaked.personal), about

    simulation.mechanism = copy(simulation.mechanism, Spy)
    simulation.method = Leaky(simulation.experiment.method, simulation.method.setup)

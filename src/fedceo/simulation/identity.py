"""Digests of a run: the one that its noise follows from, and the one by which a checkpoint is known again."""

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from fedceo.data import Federation
from fedceo.experiment.file import Experiment, to_toml
from fedceo.mechanisms.base import noise_coefficients
from fedceo.models import parameters_of
from fedceo.tasks import make_task

if TYPE_CHECKING:
    from fedceo.simulation.rounds import Simulation

NOT_IN_NOISE: dict[str, Any] = {
    "seed": True,
    "note": True,
    "data": True,
    "release": True,
    "evaluation": True,
    "checkpoint": True,
    "record": True,
    "train": {"engine", "device"},
    "privacy": {"noise_multiplier", "target_epsilon", "max_epsilon", "observer", "adjacency", "delta"},
}
"""Fields that noise does not follow from: seed, data and noise multiplier have places of their own, and the others
change nothing that is released but, for max_epsilon, its last round and, for engine and device, its rounding; steps in
coordinates of records, which only one engine takes, have a stream of their own."""


NORMALS = "normals by Box and Muller"
"""How normal numbers of record-level noise are made of a stream's words: made otherwise of the same words, they would
be another noise that is much like it."""


def make_noise_key(
    experiment: Experiment, federation: Federation, model: nn.Module, model_name: str, noise_multiplier: float
) -> str:
    """A digest of everything that decides what a run releases, but for its seed.

    Two runs that differ in any of it have independent noise. Otherwise whoever is given both models could take the
    noise out of them without knowing the seed: 2 w1 - w2 is free of noise for runs at sigma 1 and 2.

    Args:
        model: the module with its first weights; a module of the user's own may begin anywhere.
    """
    told = experiment.model_dump_json(exclude=NOT_IN_NOISE | {"method": experiment.method.unused_later_fields()})
    told += "".join(make_task(experiment.task).identity().values())
    told += NORMALS if experiment.mechanism.trains_privately else ""
    coefficients = noise_coefficients(experiment)
    if len(coefficients) > 1:  # the same draws under other coefficients would be noise that two models share
        told += repr(coefficients)
    digest = hashlib.sha256(f"{told} {experiment.method.identity()} {noise_multiplier!r} {federation.digest}".encode())
    digest.update(f"{model_name} {model}".encode())
    for name, w in parameters_of(model).items():
        digest.update(f"{name} {tuple(w.shape)} {w.dtype}".encode())
        digest.update(np.ascontiguousarray(w.detach().cpu().numpy()).data)
    return digest.hexdigest()


def continued_key(noise_key: str, round_: int, rounds: int) -> str:
    """The noise key of a run that goes on after a round, up to another number of rounds than it had.

    It is neither that of the run so far nor that of a run of as many rounds from the start: each continuation has noise
    that no other run has, in no round.
    """
    return hashlib.sha256(f"{noise_key} after round {round_} of {rounds}".encode()).hexdigest()


def identity(simulation: "Simulation", experiment: Experiment) -> str:
    """A digest of everything a checkpoint's continuation depends on: experiment, data, model, engine, device."""
    data = simulation.federation
    shapes = {name: tuple(w.shape) for name, w in simulation.state.weights.items()}
    own = simulation.task.identity().values()
    rest = (shapes, simulation.noise_multiplier, simulation.engine, simulation.device.type, *own)
    digest = hashlib.sha256(f"{to_toml(experiment)} {rest} {data.digest}".encode())
    return digest.hexdigest()

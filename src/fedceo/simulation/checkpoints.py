"""The file of a checkpoint: a method's state, the average of the global models, earlier noise, and what a run notes."""

from pathlib import Path
from typing import Any, NamedTuple

from fedceo.errors import UsageError
from fedceo.mechanisms.banded import Noises
from fedceo.methods import State
from fedceo.simulation.averaging import Average
from fedceo.simulation.tensor_files import flat_noise, read_tensors, save_tensors, take_noise

NOTED = ("round", "ledger", "seconds", "identity")
"""The least that a checkpoint must say about a run."""
AVERAGE = "average/"
"""The beginning of the names of the average's tensors."""


class Checkpoint(NamedTuple):
    """Where a run stands.

    Attributes:
        about: what the checkpoint says of the run.
        average: that of the global models so far, where there is one.
        noise: that of earlier rounds on which later ones depend, which is secret.
    """

    state: State
    about: dict[str, Any]
    average: Average | None
    noise: Noises


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write where a run stands."""
    state, about, average, noise = checkpoint
    tensors = state.flatten() | flat_noise(noise)
    if average is not None:
        tensors |= {f"{AVERAGE}{name}": w for name, w in average.weights.items()}
        about = about | {"averaged": average.models}
    save_tensors(path, tensors, about)


def read_checkpoint(path: Path, *, expected: bool) -> Checkpoint:
    """What `save_checkpoint` was given; expected: whether the file must have a checksum."""
    tensors, about = read_tensors(path, expected=expected)
    if about is None or not about.keys() >= set(NOTED):
        raise UsageError(f"{path}: not a checkpoint of a run")
    averaged = {name.removeprefix(AVERAGE): tensors.pop(name) for name in [*tensors] if name.startswith(AVERAGE)}
    try:
        noise = take_noise(tensors)
        average = Average(averaged, about["averaged"]) if averaged else None
        return Checkpoint(State.unflatten(tensors), about, average, noise)
    except (KeyError, ValueError):
        raise UsageError(f"{path}: not a checkpoint of a run") from None

"""The file of a checkpoint: a method's state, the average of the global models, and what else is needed to go on."""

from pathlib import Path
from typing import Any

from fedceo.errors import UsageError
from fedceo.methods import State
from fedceo.simulation.averaging import Average
from fedceo.simulation.tensor_files import read_tensors, save_tensors

NOTED = ("round", "ledger", "seconds", "identity")
"""The least that a checkpoint must say about a run."""
AVERAGE = "average/"
"""The beginning of the names of the average's tensors."""


def save_checkpoint(path: Path, state: State, about: dict[str, Any], average: Average | None) -> None:
    """Write where a run stands; about: what the checkpoint says of it."""
    tensors = state.flatten()
    if average is not None:
        tensors |= {f"{AVERAGE}{name}": w for name, w in average.weights.items()}
        about = about | {"averaged": average.models}
    save_tensors(path, tensors, about)


def read_checkpoint(path: Path, *, expected: bool) -> tuple[State, dict[str, Any], Average | None]:
    """What `save_checkpoint` was given; expected: whether the file must have a checksum."""
    tensors, about = read_tensors(path, expected=expected)
    if about is None or not about.keys() >= set(NOTED):
        raise UsageError(f"{path}: not a checkpoint of a run")
    averaged = {name.removeprefix(AVERAGE): tensors.pop(name) for name in [*tensors] if name.startswith(AVERAGE)}
    try:
        return State.unflatten(tensors), about, Average(averaged, about["averaged"]) if averaged else None
    except (KeyError, ValueError):
        raise UsageError(f"{path}: not a checkpoint of a run") from None

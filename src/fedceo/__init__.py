"""Federated learning under differential privacy, around FedCEO (ICML 2025).

    import fedceo
    run = fedceo.run("experiment.toml")

`run`, `resume` and `load` are the library; `Experiment` is the experiment file as an object; `from_arrays` takes data
of your own. Rooms of their own: fedceo.tensors, fedceo.data, fedceo.models, fedceo.privacy. docs/python.md shows them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedceo import data, models, privacy, tensors
    from fedceo.config import Experiment, load_experiment, parse_experiment
    from fedceo.data import Federation, Source, from_arrays
    from fedceo.errors import UsageError
    from fedceo.simulation.runs import Run, load, resume, run

__version__ = "0.1.0"

__all__ = [
    "Experiment",
    "Federation",
    "Run",
    "Source",
    "UsageError",
    "__version__",
    "data",
    "from_arrays",
    "load",
    "load_experiment",
    "models",
    "parse_experiment",
    "privacy",
    "resume",
    "run",
    "tensors",
]

_HOMES = {
    "fedceo.config": ("Experiment", "load_experiment", "parse_experiment"),
    "fedceo.data": ("Federation", "Source", "from_arrays"),
    "fedceo.errors": ("UsageError",),
    "fedceo.simulation.runs": ("Run", "load", "resume", "run"),
}
_ROOMS = ("data", "models", "privacy", "tensors")


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used: torch takes seconds, and the accountant does without it."""
    if name in _ROOMS:
        return import_module(f"fedceo.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Also the names that nobody has used yet, for tab completion."""
    return sorted({*globals(), *__all__})

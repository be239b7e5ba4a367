"""Federated learning under differential privacy, around FedCEO (ICML 2025).

    import fedceo
    run = fedceo.run("experiment.toml")

`run`, `resume` and `load` are the library; `Experiment` is the experiment file as an object; `from_arrays` takes data
of your own. Rooms of their own: fedceo.tensors, fedceo.data, fedceo.models, fedceo.accounting. docs/python.md shows
them.
"""

from typing import TYPE_CHECKING

from fedceo.lazy import on_first_use

if TYPE_CHECKING:
    from fedceo import accounting, data, models, tensors
    from fedceo.data import Federation, Source, from_arrays, from_frame, from_texts
    from fedceo.errors import UsageError
    from fedceo.experiment.file import Experiment, load_experiment, parse_experiment
    from fedceo.simulation.callbacks import Callback
    from fedceo.simulation.extending import extend
    from fedceo.simulation.runs import Run, load, resume, run

__version__ = "0.2.0"

__all__ = [
    "Callback",
    "Experiment",
    "Federation",
    "Run",
    "Source",
    "UsageError",
    "__version__",
    "accounting",
    "data",
    "extend",
    "from_arrays",
    "from_frame",
    "from_texts",
    "load",
    "load_experiment",
    "models",
    "parse_experiment",
    "resume",
    "run",
    "tensors",
]

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "fedceo.experiment.file": ("Experiment", "load_experiment", "parse_experiment"),
        "fedceo.data": ("Federation", "Source", "from_arrays", "from_frame", "from_texts"),
        "fedceo.errors": ("UsageError",),
        "fedceo.simulation.callbacks": ("Callback",),
        "fedceo.simulation.extending": ("extend",),
        "fedceo.simulation.runs": ("Run", "load", "resume", "run"),
    },
    rooms=("data", "models", "accounting", "tensors"),
)

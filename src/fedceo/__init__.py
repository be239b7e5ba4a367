"""Federated learning under differential privacy, around FedCEO (ICML 2025).

    import fedceo
    run = fedceo.run("experiment.toml")

`run`, `resume` and `load` are the library; `Experiment` is the experiment file as an object; `from_arrays` takes data
of your own. Rooms of their own: fedceo.tensors, fedceo.data, fedceo.models, fedceo.privacy.
"""

from fedceo import tensors
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
    "from_arrays",
    "load",
    "load_experiment",
    "parse_experiment",
    "resume",
    "run",
    "tensors",
]

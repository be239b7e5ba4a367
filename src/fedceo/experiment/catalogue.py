"""What there is by name: the embedded demo, experiment files, and the registries."""

import re
import tomllib
from importlib import resources
from pathlib import Path

from fedceo.experiment.file import Experiment, parse_experiment
from fedceo.experiment.method_table import known_methods
from fedceo.experiment.registry import METHODS


def demo_experiments() -> dict[str, Experiment]:
    """Three runs on the same clients, cohorts and batches: without noise, UDP-FedAvg and FedCEO at one epsilon."""
    table = tomllib.loads(resources.files("fedceo.experiment").joinpath("demo.toml").read_text())
    private, method = table["privacy"], table["method"]
    return {
        "FedAvg": parse_experiment(table | {"privacy": {"mechanism": "none"}, "method": {"name": "fedavg"}}),
        "UDP-FedAvg": parse_experiment(table | {"privacy": private, "method": {"name": "fedavg"}}),
        "FedCEO": parse_experiment(table | {"privacy": private, "method": method}),
    }


def experiment_files(root: Path = Path("experiments")) -> list[Path]:
    """Experiment files in the current folder and below its folder `experiments`."""
    files = root.rglob("*.toml") if root.is_dir() else []
    here = (file for file in Path().glob("*.toml") if _is_experiment(file))
    return [*sorted(here), *sorted(file for file in files if "parts" not in file.parts)]


def _is_experiment(file: Path) -> bool:
    """There are other files of that kind, pyproject.toml for one."""
    try:
        return not {"data", "extends"}.isdisjoint(tomllib.loads(file.read_text(encoding="utf-8")))
    except (ValueError, OSError):
        return False


def inventory() -> dict[str, dict[str, str]]:
    """Everything that can be named in an experiment file, with a line each."""
    from fedceo import data, models

    return {
        "methods": {name: _first_sentence(METHODS.descriptions[name]) for name in known_methods()},
        "models": dict(models.MODELS.descriptions),
        "data sets": dict(data.DATASETS.descriptions),
        "experiment files": {str(path): _first_comment(path) for path in experiment_files()},
    }


def _first_comment(path: Path) -> str:
    first = path.read_text(encoding="utf-8").split("\n", 1)[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def _first_sentence(words: str) -> str:
    return re.split(r"(?<!et al)\. ", words)[0].rstrip(".")

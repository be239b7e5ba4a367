"""The embedded demo, the experiment files at hand, and everything that an experiment file can name."""

import re
import tomllib
from importlib import resources
from pathlib import Path

from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment, load_grid, parse_experiment
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
    """Whether a TOML file is an experiment; other programs have such files too, pyproject.toml for one."""
    try:
        return not {"data", "extends"}.isdisjoint(tomllib.loads(file.read_text(encoding="utf-8")))
    except (ValueError, OSError):
        return False


def inventory() -> dict[str, dict[str, str]]:
    """Everything that can be named in an experiment file and the files themselves, with a line for each."""
    from fedceo import data, models

    return {
        "methods": {name: _first_sentence(METHODS.descriptions[name]) for name in known_methods()},
        "models": dict(models.DESCRIPTIONS),
        "data sets": dict(data.DESCRIPTIONS),
        "experiment files": {str(path): _description(path) for path in experiment_files()},
    }


def _description(path: Path) -> str:
    """The comment in a file's first line and, where the file has a grid, the number of its cells and its axes."""
    first = path.read_text(encoding="utf-8").split("\n", 1)[0]
    comment = first.removeprefix("#").strip() if first.startswith("#") else ""
    try:
        grid = load_grid(path)
    except UsageError as error:
        return f"cannot be read: {error}"
    return comment if grid is None else f"{comment} ({grid})".strip()


def _first_sentence(words: str) -> str:
    return re.split(r"(?<!et al)\. ", words)[0].rstrip(".")

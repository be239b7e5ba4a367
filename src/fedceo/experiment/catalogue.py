"""The embedded demo and the experiment files at hand."""

import tomllib
from importlib import resources
from pathlib import Path

from fedceo.experiment.file import ENCODING, NOT_TOML, Experiment, load_experiment, load_grid


def demo_experiments() -> dict[str, Experiment]:
    """Three runs on the same clients, cohorts and batches: without noise, UDP-FedAvg and FedCEO at one epsilon."""
    with resources.as_file(resources.files("fedceo.experiment").joinpath("demo.toml")) as file:
        grid = load_grid(file)
        assert grid is not None
        return {cell: load_experiment(file, cell=cell) for cell in grid.cells}


def experiment_files(root: Path = Path("experiments")) -> list[Path]:
    """Experiment files in the current folder and below its folder `experiments`."""
    files = root.rglob("*.toml") if root.is_dir() else []
    here = (file for file in Path().glob("*.toml") if _is_experiment(file))
    found = [*sorted(here), *sorted(file for file in files if "parts" not in file.parts)]
    return list({file.resolve(): file for file in reversed(found)}.values())[::-1]  # a link may lead to one twice


def _is_experiment(file: Path) -> bool:
    """Whether a TOML file is an experiment; other programs have such files too, pyproject.toml for one."""
    try:
        return not {"data", "extends"}.isdisjoint(tomllib.loads(file.read_text(encoding=ENCODING)))
    except (*NOT_TOML, OSError):
        return False

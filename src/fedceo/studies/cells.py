"""The cells of a sweep: which experiments, where each one's runs lie."""

import itertools
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment, load_experiment

PARTS = "parts"
"""A folder of this name holds what experiment files are made of, not experiments."""


@dataclass(frozen=True)
class Cell:
    """One experiment with one seed.

    Attributes:
        name: of the experiment, seeds apart; cells of one name are averaged.
        experiment: with its seed.
        folder: where its run lies.
    """

    name: str
    experiment: Experiment
    folder: Path


def find_cells(target: Path, seeds: int, overrides: Sequence[str], grid: Sequence[str], out: Path) -> list[Cell]:
    """All cells of a file or of the files in a folder.

    Args:
        seeds: runs of each experiment, with its own seed and those after it.
        overrides: "section.field=value", for every cell.
        grid: "section.field=[value, ...]", each cell once with every value.
    """
    files = experiment_files(target)
    cells = []
    for file, values in itertools.product(files, combinations(grid)):
        chosen = [f"{field}={_as_toml(value)}" for field, value in values.items()]
        base = target.parent if target.is_file() else target
        name = "/".join([*file.relative_to(base).with_suffix("").parts])
        name += "".join(f",{override}" for override in chosen)
        try:
            experiment = load_experiment(file, [*overrides, *chosen])
        except UsageError as error:
            raise error if str(file) in str(error) else UsageError(f"{file}: {error}") from None
        for seed in range(experiment.seed, experiment.seed + seeds):
            folder = out / _as_path(name) / f"seed-{seed}"
            cells.append(Cell(name, experiment.model_copy(update={"seed": seed}), folder))
    twice = [folder for folder, count in Counter(cell.folder for cell in cells).items() if count > 1]
    if twice:
        raise UsageError(f"--grid: {twice[0].parent.name} comes twice, expected values that differ")
    return cells


def experiment_files(target: Path) -> list[Path]:
    """The experiment files that are meant by a file or a folder."""
    if target.is_file():
        return [target]
    if not target.is_dir():
        raise UsageError(f"{target}: no such experiment file or folder")
    files = sorted(file for file in target.rglob("*.toml") if not _is_no_experiment(file.relative_to(target), file))
    if not files:
        raise UsageError(f"{target}: no experiment files in it")
    return files


def _is_no_experiment(name: Path, file: Path) -> bool:
    """Parts, and what runs have left behind."""
    left_behind = any((file.parent / left).exists() for left in ("checkpoint.safetensors", "result.json"))
    return PARTS in name.parts or left_behind


def combinations(grid: Sequence[str]) -> list[dict[str, Any]]:
    """Every combination of the values of "section.field=[value, ...]"s: {"section.field": value, ...}."""
    choices = [_choices(each) for each in grid]
    fields = [values[0][0] for values in choices]
    for field in fields:
        if fields.count(field) > 1:
            raise UsageError(f"--grid: {field} is given twice, expected all its values in one list")
    return [dict(chosen) for chosen in itertools.product(*choices)]


def _choices(grid: str) -> list[tuple[str, Any]]:
    name, equals, text = grid.partition("=")
    try:
        values: Any = tomllib.loads(f"values = {text}")["values"] if equals else None
    except tomllib.TOMLDecodeError:
        values = None
    if not isinstance(values, list) or not values:
        raise UsageError(f"--grid {grid}: expected section.field=[value, ...]")
    return [(name.strip(), value) for value in values]


def _as_toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_path(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_./=-]+", "_", name)

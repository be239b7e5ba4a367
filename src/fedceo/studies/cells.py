"""The cells of a sweep: the experiments of files and their grids, and the folder of each run."""

import hashlib
import itertools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fedceo.errors import UsageError
from fedceo.experiment.file import NOT_TOML, Experiment, load_experiment, load_grid
from fedceo.experiment.grid import nearest
from fedceo.simulation.folder import RunFolder
from fedceo.simulation.preparing import with_absolute_places

NOT_OF_THE_RUN: Any = {"note": True, "data": {"root"}}
"""Fields that change nothing of a run: words, and the folder in which its data lie on a machine."""
PARTS = "parts"
"""A folder of this name holds files that others extend, no experiments."""


@dataclass(frozen=True)
class Cell:
    """One experiment with one seed.

    Attributes:
        name: the experiment's name, the same for all its seeds, over which tables average.
        experiment: the experiment with its seed.
        folder: the run folder.
    """

    name: str
    experiment: Experiment
    folder: Path


def find_cells(
    target: Path,
    seeds: int,
    overrides: Sequence[str],
    grid: Sequence[str],
    out: Path,
    patterns: Sequence[str] = (),
) -> list[Cell]:
    """All cells of a file or of the files in a folder.

    A cell that a study beside its file has run already, such as the chosen finalist of `fedceo tune`, has its folder
    there, so that it is not run twice.

    Args:
        seeds: runs of each experiment, with its own seed and those after it.
        overrides: "section.field=value", for every cell.
        grid: "section.field=[value, ...]"; each experiment is run once with every combination of the values.
        patterns: as for `find_experiments`.
    """
    choices = [[f"{field}={_as_toml(value)}" for field, value in values.items()] for values in combinations(grid)]
    found = [find_experiments(target, [*overrides, *chosen], patterns) for chosen in choices]
    homes = {name: file.parent for name, (file, _) in _known(target).items()}
    cells = []
    for of_file, (chosen, experiments) in itertools.product(found[0], zip(choices, found, strict=True)):
        name, experiment = ",".join([of_file, *chosen]), experiments[of_file]
        for seed in range(experiment.seed, experiment.seed + seeds):
            seeded = experiment.model_copy(update={"seed": seed})
            folder, done = out / _as_path(name) / f"seed-{seed}", trial_folder(homes[of_file], seeded)
            if RunFolder(done).finished and not folder.exists():
                folder = done
            cells.append(Cell(name, seeded, folder))
    twice = [folder for folder, count in Counter(cell.folder for cell in cells).items() if count > 1]
    if twice:
        raise UsageError(f"--grid: {twice[0].parent.name} comes twice, expected values that differ")
    return cells


def find_experiments(target: Path, overrides: Sequence[str], patterns: Sequence[str] = ()) -> dict[str, Experiment]:
    """The experiments of a file or of the files in a folder, by name; those of a file with a grid are its cells.

    The name of a file's only experiment is the name of the file, within the folder where that is the target. The name
    of a cell stands behind the name of its file, or alone where the file is the target.

    Args:
        overrides: "section.field=value", for every experiment.
        patterns: only experiments whose names match one of these, such as "sigma-2.0/*"; left out: all.
    """
    known = _known(target)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise UsageError(
                f"--cell: {pattern!r} matches none of the {len(known)} experiments{nearest(pattern, known)}"
            )
    return {
        name: _load(file, overrides, cell)
        for name, (file, cell) in known.items()
        if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def _known(target: Path) -> dict[str, tuple[Path, str | None]]:
    """The file and the cell of every experiment, by name."""
    known: dict[str, tuple[Path, str | None]] = {}
    for file in experiment_files(target):
        grid = load_grid(file)
        name = "" if file == target else file.relative_to(target).with_suffix("").as_posix()
        for cell in [None] if grid is None else grid.cells:
            full = "/".join(filter(None, [name, cell])) or file.stem
            if full in known:
                raise UsageError(f"{file}: {full} is the name of an experiment in {known[full][0]} too")
            known[full] = file, cell
    return known


def of_the_run(experiment: Experiment) -> dict[str, Any]:
    """All that a run depends on: two experiments that agree in it have the same run."""
    return with_absolute_places(experiment).model_dump(mode="json", exclude=NOT_OF_THE_RUN)


def trial_folder(study: Path, experiment: Experiment) -> Path:
    """The folder of an experiment's run in a study's folder, whichever grid asked for it and as which of its trials."""
    digest = hashlib.sha256(json.dumps(of_the_run(experiment)).encode()).hexdigest()
    return study / f"trial-{digest[:12]}"


def default_folder(kind: str, target: Path, changes: Sequence[str]) -> Path:
    """runs/KIND/PATH, the folder of a study of a file or folder, other than that of any other target or changes.

    PATH is the target's own, within the working directory where it lies there; changes to its fields add a digest.
    """
    path = target.resolve()
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path.relative_to(path.anchor)
    name = path.with_suffix("") if target.is_file() else path if path.parts else Path("here")
    if changes:
        digest = hashlib.sha256("\n".join(changes).encode()).hexdigest()
        name = name.with_name(f"{name.name}-{digest[:8]}")
    return Path("runs") / kind / name


def _load(file: Path, overrides: Sequence[str], cell: str | None) -> Experiment:
    try:
        return load_experiment(file, overrides, cell)
    except UsageError as error:
        raise error if str(file) in str(error) else UsageError(f"{file}: {error}") from None


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
    """Whether a file is a part of others, or a copy that a run keeps in its folder."""
    left_behind = any((file.parent / left).exists() for left in ("checkpoint.safetensors", "result.json"))
    return PARTS in name.parts or left_behind


def combinations(grid: Sequence[str]) -> list[dict[str, Any]]:
    """Every combination of the values in --grid's "section.field=[value, ...]", as {"section.field": value, ...}."""
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
    except NOT_TOML:
        values = None
    if not isinstance(values, list) or not values:
        raise UsageError(f"--grid {grid}: expected section.field=[value, ...]")
    return [(name.strip(), value) for value in values]


def _as_toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_path(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_./=-]+", "_", name)

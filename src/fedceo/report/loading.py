"""Runs from their folders, and which of them are the same experiment with other seeds."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment
from fedceo.report.style import Array
from fedceo.simulation.folder import RunFolder
from fedceo.simulation.summary import summarise

NOT_COMPARED = ("seed", "note", "evaluation", "checkpoint", "record")
"""What may differ between runs that are averaged."""


@dataclass(frozen=True)
class LoadedRun:
    """A run as its folder tells it.

    Attributes:
        name: the end of its path that tells it from the others.
        history: one dict a round.
        result: what result.json holds; None where the run is unfinished.
        recordings: files of recorded rounds.
    """

    name: str
    path: Path
    experiment: Experiment
    history: list[dict[str, Any]]
    result: dict[str, Any] | None
    recordings: list[Path]

    @property
    def accuracy(self) -> dict[str, Any]:
        """As in result.json, of the rounds so far."""
        return self.result["accuracy"] if self.result else summarise(self.history)

    @property
    def regime(self) -> str:
        return str(self.experiment.mechanism.regime)

    @property
    def state(self) -> str:
        """finished, or how far it is."""
        done = len(self.history)
        return "finished" if self.result else f"unfinished, {done} of {self.experiment.train.rounds} rounds"

    def curve(self, field: str) -> dict[int, float]:
        """Round -> value, of the rounds that have one."""
        return {record["round"]: record[field] for record in self.history if record.get(field) is not None}

    def epsilon(self, observer: str) -> float | None:
        """Of the observer's first row; None where nothing is promised, or the run is unfinished."""
        rows = self.result["privacy"] if self.result else []
        return next((row["epsilon"] for row in rows if row["observer"] == observer), None)


@dataclass(frozen=True)
class Group:
    """Runs of one experiment, seeds apart, all finished or all not."""

    name: str
    runs: tuple[LoadedRun, ...]

    @property
    def experiment(self) -> Experiment:
        return self.runs[0].experiment

    @property
    def finished(self) -> bool:
        return self.runs[0].result is not None

    def curve(self, field: str) -> tuple[Array, Array]:
        """(rounds,) that all runs have a value for, and (runs, rounds) the values."""
        curves = [run.curve(field) for run in self.runs]
        rounds = sorted(set.intersection(*map(set, curves)))
        return np.array(rounds, dtype=int), np.array([[curve[t] for t in rounds] for curve in curves])

    def accuracies(self, key: str) -> Array:
        """(runs,) a number of the accuracy summary in percent, without the runs that have none."""
        found = [run.accuracy.get(key) for run in self.runs]
        return np.array([100 * value for value in found if value is not None])

    def epsilon(self, observer: str) -> float | None:
        """The largest over the runs; None if one of them has none."""
        found = [run.epsilon(observer) for run in self.runs]
        known = [epsilon for epsilon in found if epsilon is not None]
        return max(known) if len(known) == len(found) else None

    @property
    def noise_multiplier(self) -> float | None:
        """sigma of the first run, known once it is finished or where the experiment gives it."""
        run = self.runs[0]
        if run.result:
            return float(run.result["noise_multiplier"])
        return run.experiment.privacy.noise_multiplier if run.experiment.mechanism.adds_noise else 0.0


def load_runs(paths: Sequence[str | Path]) -> list[LoadedRun]:
    """Runs from their folders, or from all folders of runs below, as a sweep leaves them, finished or not.

    Runs that cannot be compared are refused.
    """
    places = list(dict.fromkeys(place for path in paths for place in _run_folders(Path(path))))
    if not places:
        raise UsageError("RUN: which run folders?")
    runs = []
    for path, name in zip(places, _names(places), strict=True):
        folder = RunFolder(path)
        experiment = folder.experiment()
        result = folder.result() if folder.finished else None
        runs.append(LoadedRun(name, path, experiment, folder.history(), result, folder.recordings()))
    for run in runs[1:]:
        one, other = _data(runs[0]), _data(run)
        if one != other:
            raise UsageError(
                f"{run.path}: its data is {other}, that of {runs[0].path} is {one}; accuracies on different test sets "
                "cannot be compared"
            )
    return runs


def _run_folders(path: Path) -> list[Path]:
    if RunFolder(path).exists:
        return [path]
    return sorted(file.parent for file in path.rglob("experiment.toml")) or [path]  # which is then refused by name


def group_runs(runs: Iterable[LoadedRun]) -> list[Group]:
    """Runs that differ in nothing but the seed and what does not change the result, together; of runs with one seed
    the first."""
    groups: dict[str, list[LoadedRun]] = {}
    for run in runs:
        table = run.experiment.model_dump(exclude=set(NOT_COMPARED))
        noted = run.result or {}
        same = [
            table,
            run.result is not None,
            *(noted.get(name) for name in ("model", "own_model", "own_method", "test_digest")),
        ]
        groups.setdefault(json.dumps(same), []).append(run)
    for key, found in groups.items():
        groups[key] = list({run.experiment.seed: run for run in reversed(found)}.values())[::-1]
    names = _names([_without_seed(found[0].path) for found in groups.values()])
    return [Group(name, tuple(found)) for name, found in zip(names, groups.values(), strict=True)]


def differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Field -> its value in each group, for the fields in which groups differ."""
    tables = [_flat(group.experiment.model_dump(exclude=set(NOT_COMPARED))) for group in groups]
    fields = list(dict.fromkeys(field for table in tables for field in table))
    values = {field: [_show(table.get(field)) for table in tables] for field in fields}
    return {field: found for field, found in values.items() if len(set(found)) > 1}


def read_json(path: Path) -> Any:
    """What a JSON file holds, or one line that says what is wrong with it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        raise UsageError(f"{path}: not a JSON file") from None


def _data(run: LoadedRun) -> str:
    """Which test set: the name of the data, or the file."""
    return run.result["data"] if run.result else run.experiment.data.name or Path(str(run.experiment.data.path)).name


def _names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart; a seed alone names nothing."""
    parts = [path.resolve().parts for path in paths]
    most = max(map(len, parts))
    for length in range(2 if any(path.name.startswith("seed-") for path in paths) else 1, most + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]


def _without_seed(path: Path) -> Path:
    """A sweep keeps its seeds in folders of that name."""
    return path.resolve().parent if path.name.startswith("seed-") else path.resolve()


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def _show(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

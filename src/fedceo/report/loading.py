"""Runs loaded from their folders, and grouped by experiment where they differ in the seed alone."""

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
"""Fields and sections that may differ between runs that are averaged."""


@dataclass(frozen=True)
class LoadedRun:
    """A run loaded from its folder.

    Attributes:
        name: the end of its path that tells it from the others.
        history: one dict of metrics a round.
        result: the content of result.json; None where the run is unfinished.
        recordings: files of recorded rounds.
    """

    name: str
    path: Path
    experiment: Experiment
    history: list[dict[str, Any]]
    result: dict[str, Any] | None
    recordings: list[Path]

    def __repr__(self) -> str:
        last = self.accuracy["last"]
        measured = "" if last is None else f", test accuracy {100 * last:.2f} %"
        return f"<LoadedRun {self.name}: {self.experiment.method.name}, {self.state}{measured}>"

    @property
    def accuracy(self) -> dict[str, Any]:
        """The accuracy summary of result.json, or that of the rounds so far."""
        return self.result["accuracy"] if self.result else summarise(self.history)

    @property
    def regime(self) -> str:
        return str(self.experiment.mechanism.regime)

    @property
    def state(self) -> str:
        """The word "finished", or the number of rounds so far."""
        done = len(self.history)
        return "finished" if self.result else f"unfinished, {done} of {self.experiment.train.rounds} rounds"

    def curve(self, field: str) -> dict[int, float]:
        """Round -> value of a metric, for the rounds that have one."""
        return {metrics["round"]: metrics[field] for metrics in self.history if metrics.get(field) is not None}

    def epsilon(self, observer: str) -> float | None:
        """The epsilon in the observer's first row; None where there is no guarantee, or the run is unfinished."""
        rows = self.result["privacy"] if self.result else []
        return next((row["epsilon"] for row in rows if row["observer"] == observer), None)


@dataclass(frozen=True)
class Group:
    """Runs of one experiment with different seeds, all finished or all unfinished."""

    name: str
    runs: tuple[LoadedRun, ...]

    @property
    def experiment(self) -> Experiment:
        return self.runs[0].experiment

    @property
    def finished(self) -> bool:
        return self.runs[0].result is not None

    def curve(self, field: str) -> tuple[Array, Array]:
        """The rounds for which all runs have a value, (rounds,), and the values, (runs, rounds)."""
        curves = [run.curve(field) for run in self.runs]
        rounds = sorted(set.intersection(*map(set, curves)))
        return np.array(rounds, dtype=int), np.array([[curve[t] for t in rounds] for curve in curves])

    def accuracies(self, key: str) -> Array:
        """(runs,) one number of the accuracy summary in percent, without the runs that have none."""
        found = [run.accuracy.get(key) for run in self.runs]
        return np.array([100 * value for value in found if value is not None])

    def epsilon(self, observer: str) -> float | None:
        """The largest epsilon of the runs; None if one of them has none."""
        found = [run.epsilon(observer) for run in self.runs]
        known = [epsilon for epsilon in found if epsilon is not None]
        return max(known) if len(known) == len(found) else None

    @property
    def noise_multiplier(self) -> float | None:
        """The first run's sigma; None where the run is unfinished and its experiment does not give it."""
        run = self.runs[0]
        if run.result:
            return float(run.result["noise_multiplier"])
        return run.experiment.privacy.noise_multiplier if run.experiment.mechanism.adds_noise else 0.0


def load_runs(paths: Sequence[str | Path]) -> list[LoadedRun]:
    """The runs in some folders, or in all run folders below them, as a sweep leaves them, finished or not.

    Runs on different test sets are refused.
    """
    folders = list(dict.fromkeys(folder for path in paths for folder in _run_folders(Path(path))))
    if not folders:
        raise UsageError("RUN: which run folders?")
    runs = []
    for path, name in zip(folders, _names(folders), strict=True):
        folder = RunFolder(path)
        experiment = folder.experiment()
        result = folder.result() if folder.finished else None
        history = folder.history(result["rounds"] if result else None)
        runs.append(LoadedRun(name, path, experiment, history, result, folder.recordings()))
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
    """Groups of the runs that differ in the seed alone and in what does not change a result.

    Of several runs of one group with the same seed the first is kept.
    """
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
    """Field -> its value in each group, for the fields of the experiment in which groups differ."""
    tables = [_flat(group.experiment.model_dump(exclude=set(NOT_COMPARED))) for group in groups]
    fields = list(dict.fromkeys(field for table in tables for field in table))
    values = {field: [_show(table.get(field)) for table in tables] for field in fields}
    return {field: found for field, found in values.items() if len(set(found)) > 1}


def _data(run: LoadedRun) -> str:
    """The name of the run's data, or of its file, which stands for its test set."""
    return run.result["data"] if run.result else run.experiment.data.name or Path(str(run.experiment.data.path)).name


def _names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart; a seed alone names nothing."""
    parts = [tuple(map(_letters, path.resolve().parts)) for path in paths]
    most = max(map(len, parts))
    for length in range(2 if any(path.name.startswith("seed-") for path in paths) else 1, most + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]


def _letters(name: str) -> str:
    """The name of a folder, in which bytes that are no letters are written out: no figure can show them."""
    return name.encode(errors="backslashreplace").decode()


def _without_seed(path: Path) -> Path:
    """The folder of the experiment, which in a sweep is the parent of the folders seed-N."""
    return path.resolve().parent if path.name.startswith("seed-") else path.resolve()


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def _show(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

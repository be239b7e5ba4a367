"""Runs loaded from their folders, and grouped by experiment where they differ in the seed alone."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment, parse_experiment
from fedceo.report.style import Array
from fedceo.simulation.folder import RunFolder
from fedceo.simulation.shown import as_html
from fedceo.simulation.summary import summarise
from fedceo.studies.filling import read_entries
from fedceo.tasks import Metric, is_measured, metric_of, summary_of

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
        measured = "" if last is None else f", test {self.metric.words} {self.metric.show(last)}"
        return f"<LoadedRun {self.name}: {self.experiment.method.name}, {self.state}{measured}>"

    def _repr_html_(self) -> str:
        return as_html(repr(self), self.history, self.experiment.train.rounds)

    @property
    def metric(self) -> Metric:
        """The metric of its task: the accuracy, unless its results say another."""
        return metric_of(self.result or next(filter(is_measured, self.history), {}))

    @property
    def accuracy(self) -> Mapping[str, Any]:
        """The summary of the accuracy, or of its task's metric, in result.json, or that of the rounds so far."""
        return summary_of(self.result) if self.result else summarise(self.history)

    @property
    def regime(self) -> str:
        return str(self.experiment.mechanism.regime)

    @property
    def state(self) -> str:
        """The word "finished", or the number of rounds so far."""
        done = len(self.history)
        return "finished" if self.result else f"unfinished, {done} of {self.experiment.train.rounds} rounds"

    @property
    def data(self) -> str:
        """The name of its data, or of their file, which stands for the test set."""
        return (
            self.result["data"]
            if self.result
            else self.experiment.data.name or Path(str(self.experiment.data.path)).name
        )

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

    @property
    def metric(self) -> Metric:
        return self.runs[0].metric

    def accuracies(self, key: str) -> Array:
        """(runs,) one number of the summary in percent, or the metric's unit, without the runs that have none."""
        return np.array(list(self.by_seed(key).values()))

    def by_seed(self, key: str) -> dict[int, float]:
        """Seed -> one number of the summary in percent, or the metric's unit, for the runs that have it."""
        found = {run.experiment.seed: run.accuracy.get(key) for run in self.runs}
        return {seed: self.metric.scaled(value) for seed, value in found.items() if value is not None}

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


def load_runs(paths: Sequence[str | Path], *, any_data: bool = False, cells: Sequence[str] = ()) -> list[LoadedRun]:
    """The runs in some folders, or in all run folders below them, as a sweep leaves them, finished or not.

    A path may also be a results file of a sweep (results.json), whose runs have no folders and no recordings.

    Args:
        any_data: runs on different test sets are loaded together too, which are otherwise refused.
        cells: only runs whose folders, or names in a results file, end as one of these patterns says, such as
            "sigma-2.0/*"; a folder seed-N does not count. Left out: all.
    """
    places = [Path(path) for path in paths]
    files = list(dict.fromkeys(place for place in places if place.is_file()))
    folders = list(dict.fromkeys(found for place in places if not place.is_file() for found in _run_folders(place)))
    if not folders and not files:
        raise UsageError("RUN: which run folders?")
    runs = [_in_folder(path, name) for path, name in zip(folders, _names(folders), strict=True)]
    runs += [
        from_entry(entry, file.with_suffix("") / entry["name"] / f"seed-{entry['seed']}")
        for file in files
        for entry in read_entries(file)
        if "result" in entry
    ]
    for pattern in cells:
        if not any(_matches(run, pattern) for run in runs):
            raise UsageError(f"--cell: {pattern!r} matches none of {len(runs)} runs, such as {runs[0].name}")
    runs = [run for run in runs if not cells or any(_matches(run, pattern) for pattern in cells)]
    for run in runs[1:]:
        if run.metric.name != runs[0].metric.name:
            raise UsageError(
                f"{run.path}: measured by its {run.metric.words}, and {runs[0].path} by its {runs[0].metric.words}; "
                "expected runs of one [task]"
            )
    for run in runs[1:]:
        one, other = runs[0].data, run.data
        if one != other and not any_data:
            raise UsageError(
                f"{run.path}: its data is {other}, that of {runs[0].path} is {one}; accuracies on different test sets "
                "cannot be compared"
            )
    return runs


def _matches(run: LoadedRun, pattern: str) -> bool:
    return fnmatchcase(_without_seed(run.path).as_posix(), f"*/{pattern}")


def _in_folder(path: Path, name: str) -> LoadedRun:
    folder = RunFolder(path)
    experiment = folder.experiment()
    result = folder.result() if folder.finished else None
    history = folder.history(result["rounds"] if result else None)
    return LoadedRun(name, path, experiment, history, result, folder.recordings())


def from_entry(entry: Mapping[str, Any], path: Path) -> LoadedRun:
    """The run that an entry of a results file tells of; path: where its folder would be."""
    curves = entry["curves"]
    history = [dict(zip(curves, values, strict=True)) for values in zip(*curves.values(), strict=True)]
    told = entry["experiment"]
    if not told["data"].get(
        "name"
    ):  # a file of the user's own, of which a results file says the name and not the place
        told = {**told, "data": {"path": entry["result"]["data"]} | told["data"]}
    return LoadedRun(entry["name"], path, parse_experiment(told), history, entry["result"], [])


def _by_test_records(runs: Sequence[LoadedRun]) -> dict[str, list[LoadedRun]]:
    """Runs that were measured on the same records, by their digest.

    Where natural clients hold out the test records, other seeds hold out others of the same data, and only two runs of
    one seed can show that the data differ.
    """
    digests = [(run.experiment.seed, str((run.result or {}).get("test_digest"))) for run in runs]
    held_out = runs[0].experiment.data.partition in ("natural", "pooled")
    if held_out and len({seed for seed, _ in digests}) == len(set(digests)):
        return {"": list(runs)}
    found: dict[str, list[LoadedRun]] = {}
    for run, (_, digest) in zip(runs, digests, strict=True):
        found.setdefault(digest, []).append(run)
    return found


def _run_folders(path: Path) -> list[Path]:
    if RunFolder(path).exists:
        return [path]
    return sorted(file.parent for file in path.rglob("experiment.toml")) or [path]  # which is then refused by name


def group_runs(runs: Iterable[LoadedRun]) -> list[Group]:
    """Groups of the runs that differ in the seed alone and in what does not change a result.

    Of several runs of one group with the same seed the first is kept.
    """
    alike: dict[str, list[LoadedRun]] = {}
    for run in runs:
        table = run.experiment.model_dump(exclude=set(NOT_COMPARED))
        noted = run.result or {}
        same = [table, run.result is not None, *(noted.get(name) for name in ("model", "own_model", "own_method"))]
        alike.setdefault(json.dumps(same), []).append(run)
    groups = {
        f"{key} {digest}": part for key, found in alike.items() for digest, part in _by_test_records(found).items()
    }
    for key, found in groups.items():
        groups[key] = list({run.experiment.seed: run for run in reversed(found)}.values())[::-1]
    names = _names([_without_seed(found[0].path) for found in groups.values()])
    return [Group(name, tuple(found)) for name, found in zip(names, groups.values(), strict=True)]


def differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Field -> its value in each group, for the fields of the experiment in which groups differ."""
    tables = [flat(group.experiment.model_dump(exclude=set(NOT_COMPARED))) for group in groups]
    fields = list(dict.fromkeys(field for table in tables for field in table))
    values = {field: [show_value(table.get(field)) for table in tables] for field in fields}
    return {field: found for field, found in values.items() if len(set(found)) > 1}


def _names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart; a seed alone names nothing."""
    parts = [tuple(map(_letters, path.resolve().parts)) for path in paths]
    most = max(map(len, parts), default=0)
    names: list[str] = []
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


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The fields of nested tables by their full names, such as train.rounds."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def show_value(value: Any) -> str:
    """A field's value as text."""
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

"""The runs in results/ as the pages read them: the runs of each cell, their accuracies, and which method is ahead."""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scipy import stats

from fedceo.experiment.file import load_grid

ROOT = Path(__file__).resolve().parents[2]
NEAR_CHANCE = 0.015
"""A run whose last accuracy is this near to guessing, or nearer, has collapsed."""

NAMES = {
    "fedavg": "FedAvg, no privacy", "udp-fedavg": "UDP-FedAvg", "ppsgd": "PPSGD",
    "ppsgd-fixed-rate": "PPSGD, personal rate 0.1", "centaur": "CENTAUR",
    "centaur-fixed-rate": "CENTAUR, head rate 0.01",
    "fedceo-ratio-1": "FedCEO, vartheta = 1", "fedceo": "FedCEO, vartheta > 1",
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """The runs of one cell."""

    runs: list[dict[str, Any]]

    def percent(self, name: str) -> list[float]:
        values = [run["result"]["accuracy"].get(name) for run in self.done]
        return [100 * value for value in values if value is not None]

    def by_seed(self, name: str) -> dict[int, float]:
        found = {run["seed"]: run["result"]["accuracy"].get(name) for run in self.done}
        return {seed: 100 * value for seed, value in found.items() if value is not None}

    def unsmoothed(self) -> list[float]:
        """Test accuracies of FedCEO's runs in percent, in the last evaluated round without a smoothing."""
        found = []
        for run in self.done:
            method, curves = run["experiment"]["method"], run["curves"]
            if method["name"] == "fedceo":
                measured = zip(curves["round"], curves["test_accuracy"], strict=True)
                found += [100 * value for t, value in measured if t % method["interval"]][-1:]
        return found

    def at(self, round_: int, name: str = "test_accuracy") -> dict[int, float]:
        """The accuracy in one round by seed, in percent."""
        found: dict[int, float] = {}
        for run in self.done:
            by_round = dict(zip(run["curves"]["round"], run["curves"][name], strict=True))
            found |= {run["seed"]: 100 * by_round[round_]} if by_round.get(round_) is not None else {}
        return found

    @property
    def done(self) -> list[dict[str, Any]]:
        return [run for run in self.runs if "result" in run]

    @property
    def failed(self) -> int:
        return len(self.runs) - len(self.done)

    @property
    def collapsed(self) -> int:
        return sum(run["result"]["accuracy"]["last"] <= 1 / run["result"]["classes"] + NEAR_CHANCE for run in self.done)

    @property
    def epsilon(self) -> float | None:
        found = [row["epsilon"] for run in self.done for row in run["result"]["privacy"][:1]]
        return None if not found or None in found else max(found)


FINALISTS = ".finalists"
"""The mark of files with runs whose rate was chosen among trials at full length, `fedceo tune --finalists 2`."""


def load(kind: str = "") -> dict[str, Found]:
    """Every cell that has runs, by the path of its table and its name there.

    Args:
        kind: "" or FINALISTS.
    """
    cells: dict[str, list[dict[str, Any]]] = {}
    for file in sorted((ROOT / "results").rglob(f"*{kind}.json")):
        name = file.name.removesuffix(f"{kind}.json")
        if "." in name or name == "theory":  # files of another kind, and the numbers of docs/theory.md
            continue
        folder = file.with_name(name).relative_to(ROOT / "results").as_posix()
        for run in json.loads(file.read_text()):
            cells.setdefault(f"{folder}/{run['name'].removesuffix('/tuned')}", []).append(run)
    return {name: Found(runs) for name, runs in cells.items()}


def cells_in(prefix: str) -> list[str]:
    """The full names of the cells of a table, experiments/PREFIX.toml, or of one setting within a table."""
    table = next(each for each in (Path(prefix), *Path(prefix).parents) if _file_of(each).is_file())
    grid = load_grid(_file_of(table))
    names = (f"{table.as_posix()}/{cell}" for cell in grid.cells) if grid else ()
    return sorted((name for name in names if name.startswith(f"{prefix}/")), key=_order)


def _file_of(table: Path) -> Path:
    return ROOT / "experiments" / table.parent / f"{table.name}.toml"


def _order(name: str) -> tuple[str, int, str]:
    folder, _, method = name.rpartition("/")
    known = list(NAMES)
    return folder, known.index(method) if method in known else len(known), method


def tally(cells: Mapping[str, Found], method: str, other: str, which: str = "last") -> tuple[int, int, int]:
    """In how many settings a method is above, not told apart from and below another; a setting is a cell's name but for
    the method."""
    outcomes = []
    for name, found in cells.items():
        folder, _, of = name.rpartition("/")
        rival = cells.get(favoured(f"{folder}/{other}"))
        if of == method and rival is not None:
            ours, theirs = found.by_seed(which), rival.by_seed(which)
            outcomes += [compare(ours, theirs)] if len(ours.keys() & theirs.keys()) > 1 else []
    return outcomes.count("above"), outcomes.count("open"), outcomes.count("below")


def favoured(name: str) -> str:
    """The cell that the trials favour, of a method that has two: one rate for all parts, or a second, fixed one."""
    best = {each: max((_score(trial) for trial in trials_of(each)), default=0.0) for each in _both(name)}
    return max(best, key=best.__getitem__)


def _both(name: str) -> tuple[str, str]:
    return name, f"{name}-fixed-rate"


def compare(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """The outcome of a comparison: above, below, or open where the interval of the difference holds 0."""
    mean, width = difference(ours, theirs)
    if abs(mean) <= width:
        return "open"
    return "above" if mean > 0 else "below"


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[float, float]:
    """The mean difference of runs with the same seed, and half the width of its 95 % interval (Student's t).

    One seed says nothing of that width: it is infinite.
    """
    differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if len(differences) == 1:
        return differences[0], math.inf
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.fmean(differences), float(stats.t.ppf(0.975, len(differences) - 1)) * error


def shown(difference: tuple[float, float]) -> str:
    mean, width = difference
    return f"{mean:+.2f} (one seed)" if math.isinf(width) else f"{mean:+.2f} ± {width:.2f}"


def own_settings(found: Found | None) -> str:
    """FedCEO's own settings in the words that follow a rate; "" where nothing was run."""
    if found is None or not found.done:
        return ""
    method = found.done[0]["experiment"]["method"]
    numbers = f"lambda {method['strength']:g}, vartheta {method['ratio']:g}, I {method['interval']}"
    return f"; {numbers}, {method['restart']}"


def rate_edge(name: str) -> str:
    """A remark where the rate that the trials chose for an experiment is the least or the largest that was tried."""
    trials = trials_of(name)
    rates = [trial["train.learning_rate"] for trial in trials]
    return ", edge" if trials and chosen(trials)["train.learning_rate"] in (min(rates), max(rates)) else ""


def trials_of(name: str, kind: str = "") -> list[dict[str, float]]:
    """The trials by which an experiment was tuned."""
    for parent in Path(name).parents:
        file = ROOT / "results" / f"{parent.as_posix()}{kind}.trials.json"
        if file.exists():
            found: list[dict[str, float]] = _read(file).get(name.removeprefix(f"{parent.as_posix()}/"), [])
            return found
    return []


def chosen(trials: list[dict[str, float]]) -> dict[str, float]:
    """The trial that `fedceo tune` took: the best at full length where some were run so, else the best."""
    finalists = [trial for trial in trials if "at_full_length" in trial]
    return max(
        finalists or trials, key=lambda trial: _score(trial, "at_full_length" if finalists else "validation_accuracy")
    )


def _score(trial: Mapping[str, float | None], which: str = "validation_accuracy") -> float:
    """The accuracy of a trial, which is 0 for one that failed."""
    return trial[which] or 0.0


@cache
def _read(file: Path) -> Any:
    return json.loads(file.read_text())


FAR_APART = 5.0
"""Points of standard deviation beyond which a mean says little and each seed is given."""


def spread(values: list[float]) -> str:
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.2f}"
    if len(values) == 1:
        return f"{mean} (one seed)"
    deviation = statistics.stdev(values)
    if deviation > FAR_APART:
        return f"{mean} (seeds: {', '.join(f'{value:.1f}' for value in values)})"
    return f"{mean} ± {deviation:.2f}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"

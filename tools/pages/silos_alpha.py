"""How much of its own deviation a silo should keep: what trials, runs with fixed factors and votes say, in Markdown."""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from runs_found import ROOT, cells_in, markdown, trials_of
from silos_cells import OURS, VOTED, Cells, axes, mean_of, place
from trial_grids import RATE, RATES

from fedceo.methods.fedceo import DEFAULT_ALPHA as DEFAULT

ALPHAS = {
    "silos/alpha": "How flat the optimum in alpha is",
    "silos/alpha-mean": "How flat it is for deviations averaged over rounds",
}
NEAR = 1.5
"""Points of P-dist within which a rule for the factor should be of the best fixed one."""
VOTES = ROOT / "results" / "silos" / "alpha.votes.json"
"""What silos voted on, as tools/silo_votes.py writes it."""
_Factor = TypeVar("_Factor")

BY_TRIALS = """### How flat the optimum in alpha is

By the trials of the tables above, so on validation records and with seed 0: P-dist in percent at the best of the four
rates for each alpha, in every setting that was run; *voted*: at the best of the same four rates, alpha chosen by the
silos with the counts' epsilon included.

"""
BY_VOTES = """### What silos vote on

One run of each voted cell with its tuned rate (seed 1; `tools/silo_votes.py`), for every alpha: P-dist of silos' models
after the round before the last, and below it the share of silos' own training records that these models get right,
both in percent. Of the second silos release counts with noise; *elected* is what the run made of these, *lost* what
that is below the best in P-dist.

"""


def best_by_alpha(name: str) -> dict[float, float]:
    """alpha -> the best validation P-dist over rates in percent, by a cell's trials."""
    found: dict[float, float] = {}
    for trial in trials_of(name):
        if "method.alpha" in trial:
            alpha = trial["method.alpha"]
            found[alpha] = max(found.get(alpha, 0.0), _score(trial))
    return dict(sorted(found.items()))


def _score(trial: Mapping[str, Any]) -> float:
    return 100 * (trial["validation_accuracy"] or 0.0)


def voted(name: str) -> float | None:
    """The best validation P-dist of the voted cell in a cell's place, over the rates that every alpha is tried at."""
    if OURS not in name.split("/"):
        return None
    trials = trials_of(name.replace(f"/{OURS}", f"/{VOTED}"))
    return max((_score(trial) for trial in trials if trial[RATE] in RATES), default=None)


def by_trials(cells: Cells, tables: Mapping[str, str]) -> Iterator[str]:
    """The table of the trials' P-dist by factor, and what the default and votes lose against the best of them."""
    tried = {name: best_by_alpha(name) for name in cells if name.rpartition("/epsilon")[0] in tables}
    settings = {name: values for name, values in tried.items() if values}
    if settings:
        elected = {name.removeprefix("silos/"): voted(name) for name in settings}
        shown = {name.removeprefix("silos/"): values for name, values in settings.items()}
        yield BY_TRIALS + _by_factor(shown, DEFAULT, elected)


def _by_factor(
    settings: Mapping[str, Mapping[_Factor, float]], default: _Factor, elected: Mapping[str, float | None]
) -> str:
    """The table of P-dist by factor; elected: that of the voted factor in each setting, where it was run."""
    best = {setting: max(values.values()) for setting, values in settings.items()}
    lost = {setting: best[setting] - values[default] for setting, values in settings.items()}
    of_votes = {setting: best[setting] - value for setting, value in elected.items() if value is not None}
    names = [f"alpha {str(factor).removeprefix('alpha-')}" for factor in next(iter(settings.values()))]
    head, said = ["P-dist", *names, f"lost by {DEFAULT}"], _near(f"The default, {DEFAULT},", lost)
    rows = []
    for setting, values in settings.items():
        told = (f"**{value:.1f}**" if value == best[setting] else f"{value:.1f}" for value in values.values())
        rows.append([setting, *told, f"{lost[setting]:.1f}"])
    if of_votes:
        head += ["voted", "lost by votes"]
        said += _near("A vote", of_votes)
        for row in rows:
            value = elected[row[0]]
            row += ["-", "-"] if value is None else [f"{value:.1f}", f"{of_votes[row[0]]:.1f}"]
    return markdown(head, rows) + "\n" + said


def _near(what: str, lost: Mapping[str, float]) -> str:
    far = [f"{setting} ({loss:.1f})" for setting, loss in lost.items() if loss > NEAR]
    told = f"{what} is within {NEAR} points of the best in {len(lost) - len(far)} of {len(lost)} settings"
    return f"{told}; not in {', '.join(far)}.\n" if far else f"{told}.\n"


def by_votes() -> Iterator[str]:
    """The table of what silos voted on."""
    if not VOTES.exists():
        return
    measured: dict[str, dict[str, Any]] = json.loads(VOTES.read_text())
    if measured:
        alphas = next(iter(measured.values()))["alphas"]
        rows = []
        for name, each in measured.items():
            p_dist = dict(zip(each["alphas"], each["p_dist"], strict=True))
            lost = 100 * (max(p_dist.values()) - p_dist[each["elected"]])
            percents = [[f"{100 * value:.1f}" for value in each[kind]] for kind in ("p_dist", "right")]
            rows.append([name.replace(f"/{VOTED}", ""), *percents[0], f"{each['elected']:g}", f"{lost:.1f}"])
            rows.append(["own records right", *percents[1], "", ""])
        yield BY_VOTES + markdown(("P-dist", *(f"alpha {alpha:g}" for alpha in alphas), "elected", "lost"), rows)


def flatness(table: str, cells: Cells) -> Iterator[tuple[str, dict[str, float]]]:
    """Every setting in which all factors were run, with the mean P-dist of each."""
    epsilons, partitions = axes(table)
    factors = list(dict.fromkeys(name.split("/")[3] for name in cells_in(table)))
    for epsilon, partition in itertools.product(epsilons, partitions):
        means = {factor: mean_of(cells.get(place(table, epsilon, factor, partition))) for factor in factors}
        known = {factor: mean for factor, mean in means.items() if mean is not None}
        if len(known) == len(factors):
            yield f"{epsilon}/{partition}", known


def by_runs(table: str, cells: Cells) -> str:
    """The table of P-dist by factor, and what the default loses against the best."""
    head = (
        f"### {ALPHAS[table]}\n\n"
        f"Experiments in `experiments/{table}.toml`; the rate is tuned for every factor, by four trials.\n\n"
    )
    settings = dict(flatness(table, cells))
    if not settings:
        return head + "No setting has all of its factors yet.\n"
    return head + _by_factor(settings, f"alpha-{DEFAULT}", {})

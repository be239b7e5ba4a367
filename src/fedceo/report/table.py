"""A table of experiments for a paper: methods by name, what all rows share in the caption, intervals."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedceo.accounting.printed import in_hundredths, rounded_up
from fedceo.accounting.rows import OBSERVERS
from fedceo.errors import UsageError
from fedceo.report.comparison import Contender, Contest, contests, paired, shared_settings, spoken
from fedceo.report.curves import capital
from fedceo.report.loading import Group, flat, show_value
from fedceo.report.writers import Column, Table, Value
from fedceo.tasks import Metric

ACCURACIES = {
    "last": ("last", "test {} of the global model after the last round"),
    "average": ("average", "test {} of the average of several rounds' models"),
    "best": ("best", "test {} in the best round, which is chosen on the test set and so optimistic"),
    "unsmoothed": ("last_unsmoothed", "test {} in the last round measured without a smoothing"),
    "validated": ("at_best_validation", "test {} in the round of the best validation {}"),
    "P-loc": ("local_{}_last", "{} of clients' models on their own test records"),
    "P-glob": ("personal_{}_last", "{} of clients' models on the public test set"),
    "P-dist": ("distribution_{}_last", "{} of clients' models on test records like their own"),
    "worst": ("distribution_{}_worst_last", "P-dist in the worst tenth of the clients"),
}
"""Accuracies, or another metric of the task, by the name of their column: the key in the summary, and the meaning."""
OF_OTHER_TASKS = {"worst": ("local_{}_worst_last", "P-loc in the worst tenth of the clients")}
"""What a column is in tasks without P-dist, which weights classes."""
OF_CLIENTS = ("P-loc", "P-glob", "P-dist", "worst")
"""Columns of single clients' models."""
USUAL = ("last", "average", "P-dist", "difference", "outsider", "server")
"""The columns where none are asked for; those without a value, or with one value for all, are left out."""
OTHERS = ("difference", "sigma", "seeds", "seconds", *OBSERVERS)
"""Columns beside the accuracies and the fields of the experiment file."""
SAID = (
    "data.name", "data.clients", "data.partition", "model.name", "cohort.size", "cohort.sampling", "train.rounds",
    "train.local_epochs", "train.batch_size", "train.learning_rate", "privacy.clip",
)  # fmt: skip
"""Fields that the caption names where all rows have the same value."""


@dataclass(frozen=True)
class Asked:
    """A column that is shown: its look, and the values of a contender's cell."""

    name: str
    column: Column
    cell: Callable[[Contest, Contender], tuple[Value, ...]]


def paper_table(
    groups: Sequence[Group], columns: Sequence[str] = (), against: str | None = None, renamed: Sequence[str] = ()
) -> Table:
    """A table with one row for each finished experiment and one block for each setting.

    Args:
        columns: names of ACCURACIES, OTHERS or fields such as train.learning_rate; none: the usual ones with a value.
        against: the method that differences are taken to; left out: the best of each setting.
        renamed: "NAME=other name", for methods.
    """
    done = [group for group in groups if group.finished]
    if not done:
        raise UsageError("table: no run is finished")
    found = contests(done, renamed)
    names = dict.fromkeys(contender.name for contest in found for contender in contest.contenders)
    if against is not None and against not in names:
        raise UsageError(f"--against: {against!r}, expected one of: {'; '.join(names)}")
    by_class = done[0].metric.name == "accuracy"
    wanted = list(columns or (USUAL if by_class else ("last", "average", "P-loc", "worst", *USUAL[3:])))
    if twice := next((name for name in wanted if wanted.count(name) > 1), None):
        raise UsageError(f"--columns: {twice!r} is there twice, expected every column once")
    measure = next((name for name in wanted if name in ACCURACIES), "last")
    asked = [_column(name, _key(measure, done[0].metric), against, done) for name in wanted]
    if not columns:
        asked = [each for each in asked if _tells(each, found)]
    where = [_setting(field, [contest.where[field] for contest in found]) for field in found[0].where]
    method = Asked("method", Column("method", is_text=True), lambda _, contender: (contender.name,))
    every = [method, *where, *asked]
    blocks = tuple(
        tuple(tuple(each.cell(contest, c) for each in every) for c in contest.contenders) for contest in found
    )
    shown = [each.name for each in asked]
    return Table(tuple(each.column for each in every), blocks, _caption(done, shown, measure, against, len(found)))


def _key(name: str, metric: Metric) -> str:
    return _measure(name, metric)[0].format(metric.name)


def _measure(name: str, metric: Metric) -> tuple[str, str]:
    """The key and the meaning of a column."""
    others = {} if metric.name == "accuracy" else OF_OTHER_TASKS
    return others.get(name) or ACCURACIES[name]


def _column(name: str, measure: str, against: str | None, groups: Sequence[Group]) -> Asked:
    metric = groups[0].metric
    if name in ACCURACIES:
        key = _key(name, metric)
        head = f"{name}, %" if metric.is_share else f"{name} {metric.words}"
        best = max if metric.higher_is_better else min
        look = Column(head, ("sd",), (" ± ", ""), _fixed if metric.is_share else _fine, best=best)
        return Asked(name, look, lambda _, contender: _mean_and_spread(contender.group, key))
    if name == "difference":
        show = _signed if metric.is_share else _finely_signed
        look = Column("difference", ("low", "high"), (" [", ", ", "]"), show)
        return Asked(name, look, lambda contest, contender: _difference(contest, contender, measure, against))
    if name in OBSERVERS:
        look = Column(f"ε, {name}", show=_upwards)
        return Asked(name, look, lambda _, contender: (contender.group.epsilon(name),))
    if name == "sigma":
        return Asked(name, Column("σ", show=_short), lambda _, contender: (contender.group.noise_multiplier,))
    if name == "seeds":
        return Asked(name, Column("seeds"), lambda _, contender: (len(contender.group.runs),))
    if name == "seconds":
        return Asked(name, Column("seconds", show=_fixed), lambda _, contender: (_seconds(contender.group),))
    if not any(name in flat(group.experiment.model_dump()) for group in groups):
        known = ", ".join((*ACCURACIES, *OTHERS))
        raise UsageError(f"--columns: {name!r}, expected any of {known}, or a field such as train.learning_rate")
    return Asked(
        name, Column(spoken(name), show=show_value), lambda _, contender: (_field(contender.group, name),)
    )  # fmt: skip


def _setting(field: str, values: Sequence[str]) -> Asked:
    look = Column(spoken(field), is_text=not all(re.fullmatch(r"-?[\d.]*", value) for value in values))
    return Asked(field, look, lambda contest, _: (None if contest.where[field] == "-" else contest.where[field],))


def _tells(asked: Asked, found: Sequence[Contest]) -> bool:
    """Whether a column has a value, and is no epsilon that is the same in all rows, which the caption says."""
    cells = [asked.cell(contest, contender) for contest in found for contender in contest.contenders]
    values = {cell[0] if cell else None for cell in cells}
    return values != {None} and (asked.name not in OBSERVERS or len(values) > 1)


def _mean_and_spread(group: Group, key: str) -> tuple[Value, ...]:
    values = group.accuracies(key)
    if not len(values):
        return ()
    return (float(values.mean()), float(values.std(ddof=1))) if len(values) > 1 else (float(values[0]),)


def _difference(contest: Contest, contender: Contender, measure: str, against: str | None) -> tuple[Value, ...]:
    """The paired difference to the reference of the setting; nothing for the reference itself."""
    ranked = contest.ranked(measure)
    reference = next((c for c in ranked if against is None or c.name == against), None)
    if reference is None or reference is contender:
        return ()
    found = paired(contender.group.by_seed(measure), reference.group.by_seed(measure))
    if found is None:
        return ()
    return (found.mean,) if found.low is None else (found.mean, found.low, found.high)


def _seconds(group: Group) -> float:
    return sum(run.result["seconds"] for run in group.runs if run.result) / len(group.runs)


def _field(group: Group, name: str) -> Value:
    value: Any = flat(group.experiment.model_dump()).get(name)
    return value if isinstance(value, float | int | None) else str(value)


def _fixed(value: Value) -> str:
    return f"{value:.2f}"


def _upwards(epsilon: Value) -> str:
    return in_hundredths(float(epsilon or 0))


def _signed(value: Value) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _fine(value: Value) -> str:
    """One decimal more, for metrics that are not in percent."""
    return f"{value:.3f}"


def _finely_signed(value: Value) -> str:
    return f"{value:+.3f}".replace("-", "−")


def _short(value: Value) -> str:
    return f"{value:.3g}"


def _caption(groups: Sequence[Group], shown: Sequence[str], measure: str, against: str | None, settings: int) -> str:
    """What is measured, what all rows share, and how the columns are to be read."""
    seeds = {len(group.runs) for group in groups}
    several = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else f"{max(seeds)}"
    spread = f", mean ± standard deviation over {several} seeds" if max(seeds) > 1 else ", one seed each"
    metric = groups[0].metric
    measured = [name for name in shown if name in ACCURACIES]
    meanings = [f"{name}: {_measure(name, metric)[1].replace('{}', metric.words)}" for name in measured]
    sentences = [f"{'; '.join(meanings)}{spread}." if meanings else ""]
    if any(name in OF_CLIENTS for name in measured):
        sentences.append(
            f"{', '.join(name for name in measured if name in OF_CLIENTS)}: each client's own model, or the global one "
            "where it has none; measured by private records or labels, which no ε covers."
        )
    shared = shared_settings(groups)
    own = {group.runs[0].data for group in groups if group.experiment.data.name is None}
    said = [f"data {name}" for name in own if len(own) == 1]
    said += [f"{spoken(field)} {shared[field]}" for field in SAID if field in shared]
    regimes = {group.runs[0].regime for group in groups}
    said += regimes if len(regimes) == 1 else []
    sigmas = {group.noise_multiplier for group in groups}
    if len(sigmas) == 1 and (sigma := sigmas.pop()):
        said.append(f"σ {_short(sigma)}")
    sentences.append(f"All rows: {', '.join(said)}." if said else "")
    sentences += _privacy(groups, shown)
    if measured and len(groups) > 1:
        most = "highest" if metric.higher_is_better else "lowest"
        sentences.append(f"Bold: the {most} mean{' of its setting' if settings > 1 else ''}.")
    if "difference" in shown:
        reference = f"to {against}" if against else f"to the best{' of the setting' if settings > 1 else ''}"
        unit = ", in points" if metric.is_share else ""
        interval = " with its 95 % interval (Student's t, runs of one seed in pairs, each interval by itself)"
        sentences.append(f"Difference: {reference} by {measure}{unit}{interval if max(seeds) > 1 else ''}.")
    return capital(" ".join(sentence for sentence in sentences if sentence))


def _privacy(groups: Sequence[Group], shown: Sequence[str]) -> list[str]:
    """What the epsilons hold for, and those that all rows share; nothing where no experiment has one."""
    same = {}
    for observer in ("outsider", "server"):
        values = {rounded_up(group.epsilon(observer)) for group in groups}
        if observer not in shown and len(values) == 1 and (value := values.pop()) is not None:
            same[observer] = f"{value:g} for the {observer}"
    told = {*same, *(name for name in shown if name in OBSERVERS)}
    rows = [
        row
        for group in groups
        for run in group.runs
        for row in (run.result or {}).get("privacy", [])
        if row["epsilon"] is not None and row["observer"] in told
    ]
    if not rows:
        return []
    unit, adjacency = (", ".join(sorted({row[k] for row in rows})) for k in ("unit", "adjacency"))
    sampling = _sampling({(row["observer"], row["sampling"]) for row in rows})
    deltas = ", ".join(sorted({f"{row['delta']:g}".replace("e-0", "e-") for row in rows}))
    seeded = any(group.experiment.privacy.randomness == "seeded" for group in groups)
    void = "; void for whoever knows the seed of the noise" if seeded else ""
    equal = f" is {', '.join(same.values())}," if same else ""
    holds = f"of one {unit} at δ {deltas} ({adjacency} adjacency, {sampling})"
    return [f"ε{equal} {holds}, the largest over seeds{void}."]


def _sampling(told: set[tuple[str, str]]) -> str:
    """What each observer's epsilon is amplified by, said once where it is the same for all."""
    kinds = {kind for _, kind in told}
    if len(kinds) == 1:
        return _sampled(kinds.pop())
    return ", ".join(f"{_sampled(kind)} for the {observer}" for observer, kind in sorted(told))


def _sampled(kind: str) -> str:
    return "no amplification by sampling" if kind == "none" else f"{kind} sampling"

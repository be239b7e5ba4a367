"""Figures of whole runs: accuracy over rounds, accuracy against privacy, and time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from fedceo.errors import UsageError
from fedceo.report.comparison import contests, looks_of, names_of, paired, spoken
from fedceo.report.loading import Group, LoadedRun
from fedceo.report.style import BELOW, Array, Drawing, light_grid, line_style, panels, styled
from fedceo.simulation.clock import PARTS
from fedceo.tasks import Metric

FIELDS = {
    "test_accuracy": "test accuracy of the global model (G)",
    "local_accuracy": "accuracy of clients' own models on their own records (P-loc)",
    "personal_accuracy": "accuracy of clients' own models on the test set (P-glob)",
    "distribution_accuracy": "accuracy of clients' own models on test records like their own (P-dist)",
    "distribution_accuracy_worst": "accuracy of the worst tenth of clients' own models on such records (worst)",
}
NOISE = ("privacy.noise_multiplier", "privacy.target_epsilon")
MOST_MARKS = 15
"""Marks on one line; where more rounds were measured, every second, third, ... has one."""
NO_PRIVACY = "#7F7F7F"
BEFORE_NOISE = "before noise: not covered by any epsilon"
"""What pages say of figures that come from private records, or from models that never leave a client."""

PART_COLOURS = ("#0072B2", "#E69F00", "#D55E00", "#56B4E9", "#CC79A7", "#BBBBBB")
PART_HATCHES = ("", "///", "", "...", "xxx", "")
"""Colours and hatches of the parts of a round's time; hatches tell the parts apart in grey."""


@styled
def accuracy_curves(groups: Sequence[Group], field: str = "test_accuracy") -> Drawing:
    """A figure of accuracy over rounds: the mean over seeds, with a band of one standard deviation where several.

    Marks stand at rounds that were measured, and a single measurement is a mark alone.

    Args:
        field: test_accuracy (G), local_accuracy (P-loc), personal_accuracy (P-glob), distribution_accuracy (P-dist)
            or distribution_accuracy_worst, its mean over the worst tenth of the clients; in runs of another task its
            own metric stands for the accuracy.

    Returns:
        data["NAME/rounds"], data["NAME/mean"] and data["NAME/sd"], (rounds,) each, in percent or in the metric's unit,
        for every group.
    """
    metric = groups[0].metric
    field, words = measured_as(field, metric)
    figure, axes = panels(1, 1, 6.2, 3.2 + _legend_height(len(groups)))
    panel = axes[0, 0]
    data: dict[str, Array] = {}
    for group, look in zip(groups, looks_of(groups), strict=True):
        rounds, mean, sd = mean_curve(group, field)
        data |= {f"{group.name}/rounds": rounds, f"{group.name}/mean": mean, f"{group.name}/sd": sd}
        _draw_line(panel, rounds, mean, sd if len(group.runs) > 1 else None, group.name, line_style(*look))
    if not any(len(values) for values in data.values()):
        raise UsageError(f"accuracy: no run has measured the {words}")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set(xlabel="round", ylabel=f"{words.split(' of ')[0]}{', %' if metric.is_share else ''}")
    light_grid(panel)
    figure.legend(loc=BELOW, ncols=2)
    band = "; bands are one standard deviation over seeds" if any(len(group.runs) > 1 for group in groups) else ""
    return Drawing(figure, data, f"{capital(words)} over rounds{band}.")


def measured_as(field: str, metric: Metric) -> tuple[str, str]:
    """A field of FIELDS, and its words, for runs of a task with this metric."""
    return field.replace("accuracy", metric.name), FIELDS[field].replace("accuracy", metric.words)


def _legend_height(entries: int) -> float:
    """Inches that a legend of two columns takes."""
    return 0.17 * -(-entries // 2)


def _draw_line(panel: Axes, x: Array, mean: Array, sd: Array | None, name: str, style: dict[str, Any]) -> None:
    """The means with a band of one standard deviation; a single one is a dot with a bar."""
    if len(x) == 1:
        panel.errorbar(x, mean, sd, capsize=3, label=_plain(name), **style | {"linestyle": "none"})
    elif len(x):
        panel.plot(x, mean, label=_plain(name), markevery=-(-len(x) // MOST_MARKS), **style)
        if sd is not None:
            panel.fill_between(x, mean - sd, mean + sd, color=style["color"], alpha=0.18, linewidth=0)


def mean_curve(group: Group, field: str) -> tuple[Array, Array, Array]:
    """(rounds,) each: rounds, mean and standard deviation over seeds, in percent where the metric is a share; one run
    has a deviation of 0."""
    rounds, values = group.curve(field)
    if not len(rounds):
        return rounds, np.empty(0), np.empty(0)
    sd = values.std(0, ddof=1) if len(values) > 1 else np.zeros(len(rounds))
    unit = group.metric.scaled(1.0)
    return rounds, unit * values.mean(0), unit * sd


@styled
def trade_off(
    groups: Sequence[Group], against: str = "epsilon", observer: str = "outsider", renamed: Sequence[str] = ()
) -> Drawing:
    """A figure of the last test accuracy against epsilon or sigma, one line for each method.

    Each group without privacy is a level line, the accuracy that a private method would have to reach.

    Args:
        against: epsilon or sigma.
        observer: whose epsilon: outsider, participant, server or client.
        renamed: "NAME=other name", for methods.

    Returns:
        data["METHOD/x"], data["METHOD/mean"] and data["METHOD/sd"], in percent, for every method; one run has a
        deviation of NaN.
    """
    points = trade_off_points(groups, against, observer, renamed)
    if not points:
        raise UsageError(f"trade-off: no finished run has a finite {against} ({observer})")
    free = without_privacy(groups)
    figure, axes = panels(1, 1, 5.2, 3.0 + _legend_height(len(points) + len(free)))
    panel = axes[0, 0]
    data: dict[str, Array] = {}
    for (method, (x, mean, sd)), look in zip(points.items(), series_looks(groups, points, renamed), strict=True):
        data |= {f"{method}/x": x, f"{method}/mean": mean, f"{method}/sd": sd}
        _draw_line(panel, x, mean, None if np.isnan(sd).all() else sd, method, line_style(*look) | {"markersize": 5})
    for name, group in zip(names_of(free), free, strict=True):
        level = float(group.accuracies("last").mean())
        data[f"{group.name}/level"] = np.array([level])
        panel.axhline(level, color=NO_PRIVACY, linestyle="dotted", label=f"{_plain(name)}, no privacy")
    label = f"epsilon of the {observer}" if against == "epsilon" else "noise multiplier, sigma"
    panel.set(xlabel=label, ylabel=f"last test {groups[0].metric.label}")
    if against == "epsilon":
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 4, 6, 8) if _within_a_decade(points) else (1, 2, 5)))
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.xaxis.set_minor_formatter(NullFormatter())
    light_grid(panel)
    figure.legend(loc=BELOW, ncols=2)
    arrow = "less is more private" if against == "epsilon" else "more is more private"
    band = "; bands and bars are one standard deviation over seeds" if any(len(g.runs) > 1 for g in groups) else ""
    of = f" {_promise(groups)}" if against == "epsilon" else ""
    caption = f"Test {groups[0].metric.words} after the last round against {label}{of} ({arrow}){band}."
    return Drawing(figure, data, caption)


def _promise(groups: Sequence[Group]) -> str:
    """What the epsilons are of, in words."""
    rows = [row for group in groups for run in group.runs for row in (run.result or {}).get("privacy", [])]
    kinds = (f"of one {row['unit']}, delta {row['delta']:.2g}, {row['adjacency']}" for row in rows if row["epsilon"])
    return " or ".join(dict.fromkeys(kinds))


def _within_a_decade(points: Mapping[str, tuple[Array, Array, Array]]) -> bool:
    every = np.concatenate([x for x, _, _ in points.values()])
    return bool(every.max() < 10 * every.min())


def trade_off_points(
    groups: Sequence[Group], against: str, observer: str, renamed: Sequence[str] = ()
) -> dict[str, tuple[Array, Array, Array]]:
    """Method -> (x, mean, sd), ascending in x, with accuracies in percent, of the finished groups with a positive x.

    A method is named with whatever else its settings differ in. One run has a deviation of NaN.
    """
    found: dict[str, list[tuple[float, float, float]]] = {}
    for name, group in _series(groups, renamed):
        x = group.epsilon(observer) if against == "epsilon" else group.noise_multiplier
        values = group.accuracies("last")
        if x and len(values):
            spread = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
            found.setdefault(name, []).append((x, float(values.mean()), spread))
    return {method: tuple(np.array(sorted(points)).T) for method, points in found.items()}


def series_looks(
    groups: Sequence[Group], points: Mapping[str, Any], renamed: Sequence[str] = ()
) -> list[tuple[int, int]]:
    """The look of each series of points: one colour a method, as in the other figures of these groups."""
    first: dict[str, Group] = {}
    for name, group in _series(groups, renamed):
        first.setdefault(name, group)
    colours = {id(group): look[0] for group, look in zip(groups, looks_of(groups), strict=True)}
    chosen = [colours[id(first[name])] for name in points]
    return [(colour, chosen[:number].count(colour)) for number, colour in enumerate(chosen)]


def _series(groups: Sequence[Group], renamed: Sequence[str]) -> list[tuple[str, Group]]:
    """The finished private groups, each with its method and the settings, but for the noise, that tell it apart."""
    private = [group for group in groups if group.finished and group.experiment.mechanism.adds_noise]
    found = []
    for contest in contests(private, renamed):
        more = [f"{spoken(f)} {value}" for f, value in contest.where.items() if f not in NOISE and value != "-"]
        found += [(", ".join([contender.name, *more]), contender.group) for contender in contest.contenders]
    return found


def without_privacy(groups: Sequence[Group]) -> list[Group]:
    """The finished groups without noise."""
    return [g for g in groups if g.finished and not g.experiment.mechanism.adds_noise and len(g.accuracies("last"))]


@styled
def forest(groups: Sequence[Group], renamed: Sequence[str] = ()) -> Drawing:
    """A figure of how far each experiment is from the best of its setting, with 95 % intervals over paired seeds.

    Returns:
        data["NAME"], (3,): the difference in points and the ends of its interval, NaN where one seed has none.
    """
    found = [(contest, contest.ranked("last")) for contest in contests([g for g in groups if g.finished], renamed)]
    found = [(contest, ranked) for contest, ranked in found if len(ranked) > 1]
    if not found:
        raise UsageError("forest: no setting has two experiments to compare")
    looks = {id(group): look for group, look in zip(groups, looks_of(groups), strict=True)}
    figure, axes = panels(len(found), 1, 5.6, 0.7 + sum(0.45 + 0.22 * len(ranked) for _, ranked in found), sharex=True,
                          height_ratios=[len(ranked) for _, ranked in found])  # fmt: skip
    data: dict[str, Array] = {}
    for panel, (contest, ranked) in zip(axes[:, 0], found, strict=True):
        where = ", ".join(f"{spoken(field)} {value}" for field, value in contest.where.items() if value != "-")
        best = ranked[0]
        for row, each in enumerate(ranked):
            apart = paired(each.group.by_seed("last"), best.group.by_seed("last"))
            if apart is None:
                continue
            ends = [np.nan if end is None else end for end in (apart.low, apart.high)]
            data[f"{where}/{each.name}" if where else each.name] = np.array([apart.mean, *ends])
            style = line_style(looks[id(each.group)][0]) | {"linestyle": "none", "markersize": 5}
            reach = None if apart.low is None or each is best else [[apart.mean - ends[0]], [ends[1] - apart.mean]]
            panel.errorbar(apart.mean, row, xerr=reach, capsize=3, **style)
        panel.axvline(0, color=NO_PRIVACY, linewidth=0.8)
        panel.set_yticks(range(len(ranked)), [_plain(each.name) for each in ranked])
        panel.set_ylim(len(ranked) - 0.5, -0.5)
        panel.set_title(_plain(where), loc="left")
        light_grid(panel)
    metric = groups[0].metric
    axes[-1, 0].set_xlabel(f"{'points' if metric.is_share else metric.words} from the best, last round")
    caption = (
        f"Difference of the last test {metric.words} to the best of each setting, runs of one seed in pairs, with 95 % "
        "intervals (Student's t); an interval that holds 0 tells nobody apart."
    )
    return Drawing(figure, data, caption)


@styled
def runtime(groups: Sequence[Group]) -> Drawing:
    """A figure of the wall-clock seconds of a round by part, the mean over runs, each on its own machine.

    Returns:
        data["seconds"], (groups,), of the finished groups, and data["parts"], (PARTS and the rest, groups), which add
        up to them; a run that has not noted its parts has only the rest.
    """
    done = [group for group in groups if group.finished]
    if not done:
        raise UsageError("runtime: no run is finished")
    parts = np.array([np.mean([seconds_by_part(run) for run in group.runs], 0) for group in done]).T
    seconds = parts.sum(0)
    figure, axes = panels(1, 1, 6.2, 1.3 + 0.32 * len(done))
    panel = axes[0, 0]
    left = np.zeros(len(done))
    for number, (name, width) in enumerate(zip((*PARTS, "the rest"), parts, strict=True)):
        if not width.any():
            continue
        look = {"color": PART_COLOURS[number], "hatch": PART_HATCHES[number], "edgecolor": "white", "linewidth": 0.5}
        bars = panel.barh(range(len(done)), width, left=left, height=0.65, label=name, **look)
        left = left + width
    panel.bar_label(bars, [f"{value:.3g} s" for value in seconds], padding=3)
    panel.set_yticks(range(len(done)), [_plain(group.name) for group in done])
    panel.invert_yaxis()
    panel.margins(x=0.15)
    panel.set_xlabel("seconds a round")
    figure.legend(loc=BELOW, ncols=3)
    caption = "Wall-clock time of a round on the run's machine, by where it went."
    return Drawing(figure, {"seconds": seconds, "parts": parts}, caption)


def seconds_by_part(run: LoadedRun) -> list[float]:
    """Seconds that a round of a finished run takes in each of PARTS and in the rest (files, cohorts, a budget)."""
    assert run.result is not None
    told = run.result.get("seconds_by_part", {})
    found = [told.get(part, 0.0) for part in PARTS]
    rounds = max(run.result["rounds"], 1)
    return [seconds / rounds for seconds in (*found, max(run.result["seconds"] - sum(found), 0.0))]


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def _plain(name: str) -> str:
    """A name that matplotlib shows unchanged: it sets text between dollar signs as mathematics and hides leading _."""
    return name.replace("$", r"\$").lstrip("_")

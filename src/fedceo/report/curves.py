"""Figures of whole runs: accuracy over rounds, accuracy against privacy, and time."""

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from fedceo.errors import UsageError
from fedceo.report.loading import Group, LoadedRun
from fedceo.report.style import COLOURS, Array, Drawing, light_grid, line_style, panels, styled
from fedceo.simulation.clock import PARTS

FIELDS = {
    "test_accuracy": "test accuracy of the global model (G)",
    "local_accuracy": "accuracy of clients' own models on their own records (P-loc)",
    "personal_accuracy": "accuracy of clients' own models on the test set (P-glob)",
    "distribution_accuracy": "accuracy of clients' own models on test records like their own (P-dist)",
}
BEFORE_NOISE = "before noise: not covered by any epsilon"
"""What pages say of figures that come from private records, or from models that never leave a client."""

PART_COLOURS = ("#0072B2", "#E69F00", "#D55E00", "#56B4E9", "#CC79A7", "#BBBBBB")
PART_HATCHES = ("", "///", "", "...", "xxx", "")
"""Colours and hatches of the parts of a round's time; hatches tell the parts apart in grey."""


@styled
def accuracy_curves(groups: Sequence[Group], field: str = "test_accuracy") -> Drawing:
    """A figure of accuracy over rounds: the mean over seeds, with a band of one standard deviation where several.

    Args:
        field: test_accuracy (G), local_accuracy (P-loc), personal_accuracy (P-glob) or distribution_accuracy
            (P-dist).

    Returns:
        data["NAME/rounds"], data["NAME/mean"] and data["NAME/sd"], (rounds,) each, in percent, for every group.
    """
    figure, axes = panels(1, 1, 6.2, 3.8)
    panel = axes[0, 0]
    data: dict[str, Array] = {}
    for number, group in enumerate(groups):
        rounds, mean, sd = mean_curve(group, field)
        data |= {f"{group.name}/rounds": rounds, f"{group.name}/mean": mean, f"{group.name}/sd": sd}
        style = line_style(number) | {"markevery": max(len(rounds) // 8, 1)}
        panel.plot(rounds, mean, label=_plain(group.name), **style)
        if len(group.runs) > 1:
            panel.fill_between(rounds, mean - sd, mean + sd, color=style["color"], alpha=0.18, linewidth=0)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set(xlabel="round", ylabel=f"{FIELDS[field].split(' of ')[0]}, %", ylim=(0, 100))
    light_grid(panel)
    figure.legend(loc="outside lower center", ncols=2)
    band = "; bands are one standard deviation over seeds" if any(len(group.runs) > 1 for group in groups) else ""
    return Drawing(figure, data, f"{capital(FIELDS[field])} over rounds{band}.")


def mean_curve(group: Group, field: str) -> tuple[Array, Array, Array]:
    """(rounds,) each: rounds, mean and standard deviation over seeds in percent; one run has a deviation of 0."""
    rounds, values = group.curve(field)
    if not len(rounds):
        return rounds, np.empty(0), np.empty(0)
    sd = values.std(0, ddof=1) if len(values) > 1 else np.zeros(len(rounds))
    return rounds, 100 * values.mean(0), 100 * sd


@styled
def trade_off(groups: Sequence[Group], against: str = "epsilon", observer: str = "outsider") -> Drawing:
    """A figure of the last test accuracy against epsilon or sigma, one line for each method.

    Each group without privacy is a level line, the accuracy that a private method would have to reach.

    Args:
        against: epsilon or sigma.
        observer: whose epsilon: outsider, participant, server or client.

    Returns:
        data["METHOD/x"], data["METHOD/mean"] and data["METHOD/sd"], in percent, for every method; one run has a
        deviation of NaN.
    """
    points = trade_off_points(groups, against, observer)
    if not points:
        raise UsageError(f"trade-off: no finished run has a finite {against} ({observer})")
    figure, axes = panels(1, 1, 5.2, 3.6)
    panel = axes[0, 0]
    data: dict[str, Array] = {}
    for number, (method, (x, mean, sd)) in enumerate(points.items()):
        data |= {f"{method}/x": x, f"{method}/mean": mean, f"{method}/sd": sd}
        style = line_style(number) | {"markersize": 5}
        panel.errorbar(x, mean, yerr=sd if np.nansum(sd) else None, capsize=3, label=_plain(method), **style)
    for number, group in enumerate(without_privacy(groups), len(points)):
        level = float(group.accuracies("last").mean())
        data[f"{group.name}/level"] = np.array([level])
        panel.axhline(
            level, color=COLOURS[number % len(COLOURS)], linestyle="dotted", label=f"{_plain(group.name)}, no privacy"
        )
    label = f"epsilon of the {observer}" if against == "epsilon" else "noise multiplier, sigma"
    panel.set(xlabel=label, ylabel="test accuracy, last round, %", ylim=(0, 100))
    if against == "epsilon":
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.xaxis.set_minor_formatter(NullFormatter())
    light_grid(panel)
    figure.legend(loc="outside lower center")
    arrow = "less is more private" if against == "epsilon" else "more is more private"
    return Drawing(figure, data, f"Test accuracy after the last round against {label} ({arrow}).")


def trade_off_points(groups: Sequence[Group], against: str, observer: str) -> dict[str, tuple[Array, Array, Array]]:
    """Method -> (x, mean, sd), ascending in x, with accuracies in percent, of the finished groups with a positive x.

    One run has a deviation of NaN.
    """
    found: dict[str, list[tuple[float, float, float]]] = {}
    for group in groups:
        x = group.epsilon(observer) if against == "epsilon" else group.noise_multiplier
        values = group.accuracies("last")
        if group.finished and x and len(values):
            spread = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
            method = f"{group.experiment.method.name}, {group.runs[0].regime}"
            found.setdefault(method, []).append((x, float(values.mean()), spread))
    return {method: tuple(np.array(sorted(points)).T) for method, points in found.items()}


def without_privacy(groups: Sequence[Group]) -> list[Group]:
    """The finished groups without noise."""
    return [g for g in groups if g.finished and not g.experiment.mechanism.adds_noise and len(g.accuracies("last"))]


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
    figure.legend(loc="outside lower center", ncols=3)
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

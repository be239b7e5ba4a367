"""Interactive charts of plotly, as pieces of HTML that need nothing but the script inside the page.

Names come from folders and files. Plotly interprets some HTML in text, so names are escaped first.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from fedceo.accounting.printed import rounded_up
from fedceo.accounting.rows import OBSERVERS
from fedceo.report.comparison import Contest, looks_of, names_of, paired, spoken
from fedceo.report.curves import (
    BEFORE_NOISE,
    capital,
    mean_curve,
    measured_as,
    series_looks,
    trade_off_points,
    without_privacy,
)
from fedceo.report.loading import Group
from fedceo.tasks import Metric

COLOURS = ("#2488C8", "#D55E00", "#8F7FBF", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F")
"""The colours of the figures, but for the darkest two, which could not be seen on a dark page."""
DASHES = ("solid", "dash", "dot", "dashdot")
WHOLE = {"yaxis.range": [0.0, 100.0]}
NEAR = 10
"""Points from the best within which an experiment must lie to count for what a chart shows at first."""
TICKS = [digit * 10.0**power for power in range(-3, 7) for digit in (1, 2, 5)]
LOGARITHMIC = {"type": "log", "tickvals": TICKS, "ticktext": [f"{tick:g}" for tick in TICKS]}
LITTLE = 20
"""The epsilon above which a promise means little."""
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")


@dataclass(frozen=True)
class Chart:
    """A chart, with its numbers as a table for readers who cannot see it.

    Attributes:
        html: a <div> and the script that fills it.
        caption: the sentence below the chart.
        head, rows: the table's cells as text.
        name: the end of the id of its <div>, "chart-NAME".
        whole, zoomed: what plotly's relayout takes, as JSON, to show the full scale and to go back; "" without one.
    """

    html: str
    caption: str
    head: list[str]
    rows: list[list[str]]
    name: str = ""
    whole: str = ""
    zoomed: str = ""


def script() -> str:
    """The source of plotly's JavaScript library."""
    return get_plotlyjs()


def accuracy_chart(groups: Sequence[Group], field: str) -> Chart | None:
    """A chart of accuracy over rounds with bands over seeds; None where no run has a curve of its own.

    It shows at first where the better experiments are in the second half of their rounds.
    """
    figure, rows, ends, metric = go.Figure(), [], [], groups[0].metric
    named, words = measured_as(field, metric)
    if field != "test_accuracy" and all(_is_that_of_the_global_model(group, named) for group in groups):
        return None
    for group, look in zip(groups, looks_of(groups), strict=True):
        rounds, mean, sd = mean_curve(group, named)
        if not len(rounds):
            continue
        style, name = _style(*look), escape(group.name)
        spread = f" ± %{{customdata:{_digits(metric)}}}" if len(group.runs) > 1 else ""
        mode = "lines+markers" if len(rounds) > 1 else "markers"
        if spread and len(rounds) > 1:
            band = {"x": [*rounds, *rounds[::-1]], "y": [*(mean + sd), *(mean - sd)[::-1]], "fill": "toself"}
            figure.add_scatter(
                **band, fillcolor=style["line"]["color"], opacity=0.18, line={"width": 0}, mode="lines",
                hoverinfo="skip", showlegend=False, legendgroup=name,
            )  # fmt: skip
        figure.add_scatter(
            x=rounds, y=mean, name=name, legendgroup=name, mode=mode, customdata=sd, **style,
            hovertemplate=f"round %{{x}}: %{{y:{_digits(metric)}}}{spread} {metric.unit}<extra>{name}</extra>",
        )  # fmt: skip
        late = rounds >= rounds[-1] / 2
        ends.append((mean[-1], (mean - sd)[late].min(), (mean + sd)[late].max()))
        shown = [metric.text(s) if spread else "-" for s in sd]
        rows += [[group.name, str(t), metric.text(m), s] for t, m, s in zip(rounds, mean, shown, strict=True)]
    if not rows:
        return None
    figure.update_xaxes(tick0=0, dtick=_whole_step(max(int(row[1]) for row in rows)))
    head = ["method", "round", _mean_of(metric), "sd over seeds"]
    marked = "" if field == "test_accuracy" else f"; {BEFORE_NOISE}"
    best = max(ends, key=lambda end: metric.score(end[0]))[0]
    near = [span for end, *span in ends if abs(end - best) <= _near(metric, best)]
    zoomed = {"yaxis.range": _widened(min(low for low, _ in near), max(high for _, high in near))}
    name = f"accuracy-{field.replace('_accuracy', '').replace('_', '-')}"
    caption = f"{capital(words)}, over rounds{marked}"
    table = _spread_where_known(head, rows, metric)
    return _chart(figure, "round", metric.label, name, caption, *table, _whole(metric), zoomed)


def _is_that_of_the_global_model(group: Group, field: str) -> bool:
    """Whether a metric of clients' own models is in every round that of the global one, or not there."""
    test = f"test_{group.metric.name}"
    return all(record.get(field) in (None, record.get(test)) for run in group.runs for record in run.history)


def trade_off_chart(groups: Sequence[Group], observer: str) -> Chart | None:
    """A chart of the metric after the last round against epsilon, or against sigma where no run has an epsilon.

    None where no method has been run at two of them.
    """
    for against, label in (("epsilon", f"epsilon of the {observer}"), ("sigma", "noise multiplier, sigma")):
        points = trade_off_points(groups, against, observer)
        if any(len(x) > 1 for x, _, _ in points.values()):
            return _trade_off(groups, points, label, against)
    return None


def _trade_off(groups: Sequence[Group], points: Mapping[str, Any], label: str, against: str) -> Chart:
    figure, rows, spans, metric = go.Figure(), [], [], groups[0].metric
    for (method, (x, mean, sd)), look in zip(points.items(), series_looks(groups, points), strict=True):
        figure.add_scatter(
            x=x, y=mean, name=escape(method), mode="lines+markers" if len(x) > 1 else "markers",
            error_y={"array": sd, "visible": bool(np.nansum(sd))}, **_style(*look, size=9),
        )  # fmt: skip
        spans += [*(mean - np.nan_to_num(sd)), *(mean + np.nan_to_num(sd))]
        shown = ["-" if np.isnan(s) else metric.text(s) for s in sd]
        rows += [[method, f"{a:.4g}", metric.text(m), s] for a, m, s in zip(x, mean, shown, strict=True)]
    free = without_privacy(groups)
    for name, group in zip(names_of(free), free, strict=True):
        level = float(group.accuracies("last").mean())
        figure.add_hline(level, line={"dash": "dot", "color": "#7F7F7F"}, annotation_text=f"{escape(name)}, no privacy")
        spans.append(level)
        rows.append([name, "no privacy", metric.text(level), "-"])
    if against == "epsilon":
        figure.update_xaxes(**LOGARITHMIC)
    table = _spread_where_known(["method", label, _mean_of(metric), "sd over seeds"], rows, metric)
    caption = f"Test {metric.words} after the last round against {label}"
    zoomed = {"yaxis.range": _widened(min(spans), max(spans))}
    title = f"test {metric.words}, last round{', %' if metric.is_share else ''}"
    return _chart(figure, label, title, f"trade-off-{against}", caption, *table, _whole(metric), zoomed)


def forest_chart(contests: Sequence[Contest], groups: Sequence[Group], key: str = "last") -> Chart | None:
    """A chart of the difference of each experiment to the best of its setting, with intervals over paired seeds.

    groups: all those on the page, which say who has which colour. None where no setting has two experiments.
    """
    figure, rows, spans, metric = go.Figure(), [], [], groups[0].metric
    looks = {id(group): look for group, look in zip(groups, looks_of(groups), strict=True)}
    for contest in contests:
        ranked = contest.ranked(key)
        where = ", ".join(f"{spoken(field)} {value}" for field, value in contest.where.items() if value != "-")
        for each in ranked if len(ranked) > 1 else ():
            found = paired(each.group.by_seed(key), ranked[0].group.by_seed(key))
            if found is None:
                continue
            low, high = (found.mean if end is None else end for end in (found.low, found.high))
            name = f"{each.name}, {where}" if where else each.name
            figure.add_scatter(
                x=[found.mean], y=[escape(name)], mode="markers", showlegend=False,
                error_x={"array": [high - found.mean], "arrayminus": [found.mean - low], "visible": high > low},
                hovertemplate=(
                    f"{metric.signed(found.mean)}{' points' if metric.is_share else ''} "
                    f"({metric.signed(low)} to {metric.signed(high)})<extra>{escape(name)}</extra>"
                ),
                **_style(looks[id(each.group)][0], 0, size=10),
            )  # fmt: skip
            best = abs(float(ranked[0].group.accuracies(key).mean()))
            spans.append((abs(found.mean) <= _near(metric, best), low, high))
            apart = found.low is not None and each is not ranked[0]
            interval = f"{metric.signed(low)} to {metric.signed(high)}" if apart else "-"
            rows.append([name, metric.signed(found.mean), interval, str(found.seeds)])
    if not rows:
        return None
    figure.add_vline(0, line={"color": "#7F7F7F", "width": 1})
    figure.update_yaxes(autorange="reversed", automargin=True, tickmode="linear", tickson="boundaries")
    figure.update_layout(height=90 + 34 * len(rows))
    near = [(low, high) for is_near, low, high in spans if is_near]
    whole, zoomed = (
        {"xaxis.range": _widened(min(low for low, _ in found), max(high for _, high in found))}
        for found in ([span[1:] for span in spans], near)
    )
    caption = (
        "How far each is from the best of its setting after the last round: runs of one seed in pairs, lines are 95 % "
        "intervals (Student's t, each by itself). A line that crosses 0 tells nobody apart"
    )
    label = f"{'points' if metric.is_share else metric.words} from the best"
    head = ["method", label, "95 % interval", "seeds in pairs"]
    return _chart(figure, label, "", "forest", caption, head, rows, whole, zoomed)


def epsilon_chart(groups: Sequence[Group]) -> Chart | None:
    """A chart of every observer's epsilon, with one mark for all experiments that have the same; None without any."""
    alike: dict[tuple[tuple[str, float], ...], list[int]] = {}
    for number, group in enumerate(groups):
        found = ((observer, rounded_up(group.epsilon(observer))) for observer in OBSERVERS)
        alike.setdefault(tuple((observer, epsilon) for observer, epsilon in found if epsilon), []).append(number)
    alike.pop((), None)
    if not alike:
        return None
    figure, rows, looks = go.Figure(), [], looks_of(groups)
    for known, numbers in alike.items():
        name = ", ".join(groups[number].name for number in numbers)
        style = _style(*looks[numbers[0]], size=11)
        if len(numbers) > 1:
            style["marker"] |= {"color": "#7F7F7F", "symbol": "circle"}
        figure.add_scatter(
            x=[epsilon for _, epsilon in known], y=[observer for observer, _ in known], name=escape(name),
            mode="markers", showlegend=True, **style, hovertemplate="%{y}: epsilon %{x:.3g}<extra></extra>",
        )  # fmt: skip
        rows += [[name, observer, f"{epsilon:g}"] for observer, epsilon in known]
    figure.add_vline(LITTLE, line={"color": "#7F7F7F", "dash": "dot"})
    every = [np.log10(epsilon) for known in alike for _, epsilon in known]
    seen = [observer for observer in OBSERVERS if any(row[1] == observer for row in rows)]
    figure.update_xaxes(**LOGARITHMIC, range=_widened(min(*every, np.log10(LITTLE)), max(*every, np.log10(LITTLE))))
    figure.update_yaxes(categoryorder="array", categoryarray=seen[::-1], automargin=True)
    figure.update_layout(height=150 + 42 * len(seen) + 22 * len(alike))
    caption = f"Epsilon by observer: less is more private; to the right of the dotted line, {LITTLE}, it means little"
    return _chart(figure, "epsilon", "", "epsilon", caption, ["method", "observer", "epsilon"], rows)


def _style(method: int, variant: int, size: int = 6) -> dict[str, Any]:
    """Line and marker, in the method's colour, with the variant's dash."""
    colour = COLOURS[method % len(COLOURS)]
    return {
        "line": {"color": colour, "dash": DASHES[(method // len(COLOURS) + variant) % len(DASHES)]},
        "marker": {"color": colour, "symbol": SYMBOLS[(method + variant // len(DASHES)) % len(SYMBOLS)], "size": size},
    }


def _widened(low: float, high: float) -> list[float]:
    """A range with some room on both sides."""
    room = 0.05 * (high - low) or 0.5
    return [low - room, high + room]


def _digits(metric: Metric) -> str:
    """How plotly shows a value."""
    return ".2f" if metric.is_share else ".4g"


def _mean_of(metric: Metric) -> str:
    return f"mean, {metric.unit}" if metric.unit else "mean"


def _near(metric: Metric, best: float) -> float:
    """How far from the best an experiment may be to count for what a chart shows at first."""
    return NEAR if metric.is_share else abs(best)


def _whole(metric: Metric) -> Mapping[str, list[float]] | None:
    """The full scale, of shares alone."""
    return WHOLE if metric.is_share else None


def _spread_where_known(head: list[str], rows: list[list[str]], metric: Metric) -> tuple[list[str], list[list[str]]]:
    """The table without its last column, and without the word "mean", where every experiment has one run alone."""
    if any(row[-1] != "-" for row in rows):
        return head, rows
    return [*head[:-2], metric.unit or metric.words], [row[:-1] for row in rows]


def _whole_step(last: int) -> int:
    """The number of rounds between two ticks, for about ten ticks."""
    return next(step * 10**power for power in range(12) for step in (1, 2, 5) if last <= 10 * step * 10**power)


def _chart(
    figure: go.Figure,
    x: str,
    y: str,
    name: str,
    caption: str,
    head: list[str],
    rows: list[list[str]],
    whole: Mapping[str, list[float]] | None = None,
    zoomed: Mapping[str, list[float]] | None = None,
) -> Chart:
    """The chart of a figure, without colours of text and grid: the style sheet sets them, for light and dark."""
    figure.update_layout(
        template="none", paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", autosize=True,
        height=figure.layout.height or 400 + 14 * len(figure.data), margin={"l": 56, "r": 12, "t": 16, "b": 56},
        hovermode="closest", legend={"orientation": "h", "y": 1.02, "x": 0, "yanchor": "bottom"},
        xaxis={"title": {"text": x}, "zeroline": False}, yaxis={"title": {"text": y}, "zeroline": False},
    )  # fmt: skip
    for axis, span in (zoomed or {}).items():
        figure.update_layout({axis.replace(".", "_"): span})
    html = figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=f"chart-{name}",
        config={"displayModeBar": False, "responsive": True, "scrollZoom": False},
    )  # fmt: skip
    both = (json.dumps(whole), json.dumps(zoomed)) if whole and zoomed and whole != zoomed else ("", "")
    return Chart(html, caption, head, rows, name, *both)

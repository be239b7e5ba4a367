"""Interactive charts of plotly, as pieces of HTML that need nothing but the script inside the page.

Names come from folders and files. Plotly interprets some HTML in text, so names are escaped first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from fedceo.report.curves import BEFORE_NOISE, FIELDS, capital, mean_curve, trade_off_points, without_privacy
from fedceo.report.loading import Group

COLOURS = ("#2488C8", "#D55E00", "#8F7FBF", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F")
"""The colours of the figures, but for the darkest two, which could not be seen on a dark page."""
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")


@dataclass(frozen=True)
class Chart:
    """A chart, with its numbers as a table for readers who cannot see it.

    Attributes:
        html: a <div> and the script that fills it.
        caption: the sentence below the chart.
        head, rows: the table's cells as text.
    """

    html: str
    caption: str
    head: list[str]
    rows: list[list[str]]


def script() -> str:
    """The source of plotly's JavaScript library."""
    return get_plotlyjs()


def accuracy_chart(groups: Sequence[Group], field: str) -> Chart | None:
    """A chart of accuracy over rounds with bands over seeds; None where no run has the field."""
    figure, rows = go.Figure(), []
    for number, group in enumerate(groups):
        rounds, mean, sd = mean_curve(group, field)
        if not len(rounds):
            continue
        colour, name = COLOURS[number % len(COLOURS)], escape(group.name)
        spread = " ± %{customdata:.2f}" if len(group.runs) > 1 else ""
        if spread:
            band = {"x": [*rounds, *rounds[::-1]], "y": [*(mean + sd), *(mean - sd)[::-1]], "fill": "toself"}
            figure.add_scatter(
                **band, fillcolor=colour, opacity=0.18, line={"width": 0}, mode="lines", hoverinfo="skip",
                showlegend=False, legendgroup=str(number),
            )  # fmt: skip
        figure.add_scatter(
            x=rounds, y=mean, name=name, legendgroup=str(number), mode="lines+markers", customdata=sd,
            line={"color": colour, "dash": DASHES[(number // len(COLOURS) + number) % len(DASHES)]},
            marker={"symbol": SYMBOLS[number % len(SYMBOLS)], "size": 6 if len(rounds) < 40 else 1},
            hovertemplate=f"round %{{x}}: %{{y:.2f}} %{spread}<extra>{name}</extra>",
        )  # fmt: skip
        shown = [f"{s:.2f}" if spread else "-" for s in sd]
        rows += [[group.name, str(t), f"{m:.2f}", s] for t, m, s in zip(rounds, mean, shown, strict=True)]
    if not rows:
        return None
    figure.update_xaxes(tick0=0, dtick=_whole_step(max(int(row[1]) for row in rows)))
    html = _html(figure, "round", "accuracy, %", f"accuracy-{field.split('_')[0]}")
    head = ["run", "round", "mean, %", "sd over seeds"]
    marked = "" if field == "test_accuracy" else f"; {BEFORE_NOISE}"
    return Chart(html, f"{capital(FIELDS[field])}, over rounds{marked}", *_spread_where_known(head, rows))


def trade_off_chart(groups: Sequence[Group], against: str, observer: str) -> Chart | None:
    """A chart of the last accuracy against epsilon or sigma; None where there are not two points to compare."""
    points = trade_off_points(groups, against, observer)
    if sum(len(x) for x, _, _ in points.values()) < 2:
        return None
    label = f"epsilon of the {observer}" if against == "epsilon" else "noise multiplier, sigma"
    figure, rows = go.Figure(), []
    for number, (method, (x, mean, sd)) in enumerate(points.items()):
        figure.add_scatter(
            x=x, y=mean, name=escape(method), mode="lines+markers",
            error_y={"array": sd, "visible": bool(np.nansum(sd))},
            line={"color": COLOURS[number % len(COLOURS)], "dash": DASHES[number % len(DASHES)]},
            marker={"symbol": SYMBOLS[number % len(SYMBOLS)], "size": 9},
        )  # fmt: skip
        shown = ["-" if np.isnan(s) else f"{s:.2f}" for s in sd]
        rows += [[method, f"{a:.4g}", f"{m:.2f}", s] for a, m, s in zip(x, mean, shown, strict=True)]
    for group in without_privacy(groups):
        level = float(group.accuracies("last").mean())
        figure.add_hline(
            level, line={"dash": "dot", "color": "#7F7F7F"}, annotation_text=f"{escape(group.name)}, no privacy"
        )
        rows.append([group.name, "no privacy", f"{level:.2f}", "-"])
    html = _html(figure, label, "test accuracy, last round, %", f"trade-off-{against}", log=against == "epsilon")
    head = ["method", label, "mean, %", "sd over seeds"]
    return Chart(html, f"Test accuracy after the last round against {label}", *_spread_where_known(head, rows))


def _spread_where_known(head: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """The table without its last column, and without the word "mean", where every experiment has one run alone."""
    if any(row[-1] != "-" for row in rows):
        return head, rows
    return [*head[:-2], "%"], [row[:-1] for row in rows]


def _whole_step(last: int) -> int:
    """The number of rounds between two ticks, for about ten ticks."""
    return next(step * 10**power for power in range(12) for step in (1, 2, 5) if last <= 10 * step * 10**power)


def _html(figure: go.Figure, x: str, y: str, name: str, log: bool = False) -> str:
    """The figure as HTML, without colours of text and grid: the page's style sheet sets them, for light and dark."""
    figure.update_layout(
        template="none", paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", autosize=True,
        height=400 + 14 * len(figure.data), margin={"l": 56, "r": 12, "t": 16, "b": 56}, hovermode="closest",
        legend={"orientation": "h", "y": 1.02, "x": 0, "yanchor": "bottom"},
        xaxis={"title": {"text": x}, "type": "log" if log else "linear", "zeroline": False},
        yaxis={"title": {"text": y}, "range": [0, 100], "zeroline": False},
    )  # fmt: skip
    return figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=f"chart-{name}",
        config={"displayModeBar": False, "responsive": True, "scrollZoom": False},
    )  # fmt: skip

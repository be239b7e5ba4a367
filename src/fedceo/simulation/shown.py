"""A run in a few words, and for a notebook with a small chart."""

from collections.abc import Mapping, Sequence
from html import escape
from math import isfinite
from typing import TYPE_CHECKING, Any

from fedceo.accounting.printed import rounded_up
from fedceo.tasks import is_measured, metric_of, summary_of

if TYPE_CHECKING:
    from fedceo.simulation.runs import Run

WIDTH, HEIGHT, BESIDE = 240, 60, 60
"""Size of the chart and of the room for labels beside it, in pixels."""
MOST_DOTS = 25
"""Measurements that are marked one by one."""


def in_words(run: "Run") -> str:
    """One line: what was run, how far it is, and what came out."""
    result, observer = run.result, run.experiment.privacy.observer
    parts = [f"{len(run.history)} of {run.experiment.train.rounds} rounds"]
    metric, last = metric_of(result), summary_of(result)["last"]
    if last is not None:
        parts.append(f"test {metric.words} {metric.show(last)}")
    epsilon = next((row["epsilon"] for row in result["privacy"] if row["observer"] == observer), None)
    parts.append("no epsilon" if epsilon is None else f"epsilon {rounded_up(epsilon):g} for the {observer}")
    if not result.get("model_is_finite", True):
        parts.append("model NaN or Inf")
    if run.folder is not None:
        parts.append(str(run.folder))
    return f"<Run of {result['method']} on {result['data']} with {result['model']}: {', '.join(parts)}>"


def as_html(words: str, history: Sequence[Mapping[str, Any]], rounds: int) -> str:
    """The words of a repr above the curve of the test accuracy, or other metric, where two rounds were measured.

    The curve fills its chart, whose labels say from where to where it goes.
    """
    text = f"<div>{escape(words[1:-1])}</div>"
    metric = metric_of(next(filter(is_measured, history), {}))
    found = [(each["round"], each.get(f"test_{metric.name}")) for each in history]
    measured = [(t, y) for t, y in found if y is not None and isfinite(y)]
    if len(measured) < 2:
        return text
    low, high = min(y for _, y in measured), max(y for _, y in measured)
    points = [(WIDTH * t / rounds, HEIGHT * (high - y) / ((high - low) or 1.0)) for t, y in measured]
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>' for x, y in points) if len(points) <= MOST_DOTS else ""
    labels = ((WIDTH + 6, 4, metric.show(high)), (WIDTH + 6, HEIGHT + 4, metric.show(low)))
    below = f"test {metric.words}, rounds {measured[0][0]} to {measured[-1][0]} of {rounds}"
    written = "".join(
        f'<text x="{x}" y="{y}">{escape(label)}</text>' for x, y, label in (*labels, (0, HEIGHT + 20, below))
    )
    wide, tall = WIDTH + BESIDE, HEIGHT + 32
    return (
        f'{text}<svg width="{wide}" height="{tall}" viewBox="-4 -6 {wide} {tall}" '
        f'role="img" fill="currentColor" font-size="11" font-family="sans-serif"><title>{escape(below)}</title>'
        f'<path d="M0 0V{HEIGHT}H{WIDTH}" fill="none" stroke="currentColor" stroke-opacity="0.3"/>'
        f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" fill="none" stroke="#2488C8" '
        f'stroke-width="2"/><g fill="#2488C8">{dots}</g>{written}</svg>'
    )

"""A run in a few words, and for a notebook with a small chart."""

from html import escape
from typing import TYPE_CHECKING

from fedceo.tasks import metric_of, summary_of

if TYPE_CHECKING:
    from fedceo.simulation.runs import Run

WIDTH, HEIGHT = 240, 60
"""Size of the chart, in pixels."""


def in_words(run: "Run") -> str:
    """One line: what was run, how far it is, and what came out."""
    result, observer = run.result, run.experiment.privacy.observer
    parts = [f"{len(run.history)} of {run.experiment.train.rounds} rounds"]
    metric, last = metric_of(result), summary_of(result)["last"]
    if last is not None:
        parts.append(f"test {metric.words} {metric.show(last)}")
    epsilon = next((row["epsilon"] for row in result["privacy"] if row["observer"] == observer), None)
    parts.append("no epsilon" if epsilon is None else f"epsilon {epsilon:.3g} for the {observer}")
    if not result.get("model_is_finite", True):
        parts.append("model NaN or Inf")
    if run.folder is not None:
        parts.append(str(run.folder))
    return f"<Run of {result['method']} on {result['data']} with {result['model']}: {', '.join(parts)}>"


def as_html(run: "Run") -> str:
    """The words above the curve of the test accuracy, or other metric, where at least two rounds were measured."""
    words = f"<div>{escape(in_words(run)[1:-1])}</div>"
    metric = metric_of(run.result)
    found = [(each["round"], each.get(f"test_{metric.name}")) for each in run.history]
    measured = [(t, value) for t, value in found if value is not None]
    if len(measured) < 2:
        return words
    rounds, highest = run.experiment.train.rounds, max(value for _, value in measured) or 1.0
    points = " ".join(f"{WIDTH * t / rounds:.1f},{HEIGHT * (1 - y / highest):.1f}" for t, y in measured)
    return (
        f'{words}<svg width="{WIDTH}" height="{HEIGHT}" viewBox="-2 -2 {WIDTH + 4} {HEIGHT + 4}" role="img">'
        f"<title>test {escape(metric.words)} over rounds, 0 to {metric.show(highest)}</title>"
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
    )

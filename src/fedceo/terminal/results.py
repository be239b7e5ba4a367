"""Tables of finished runs: their accuracies and their privacy rows."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from fedceo.accounting.reasons import adjacency, joined, shared
from fedceo.simulation.chosen import study_of
from fedceo.tasks import Metric, metric_of, summary_of
from fedceo.terminal.tables import PRIVACY_COLUMNS, Cell, Column, apart, console, or_none, show_table

if TYPE_CHECKING:
    from fedceo.simulation.runs import Run

NAMES = {
    "last": "last round",
    "best": "best round (chosen on the test set)",
    "at_best_validation": "at best validation",
}
NOT_FINITE = "the model is NaN or Inf: training has diverged, and its accuracies say nothing"
PERSONAL_NAMES = {
    "local_{}_last": "P-loc, on their own test records",
    "local_{}_worst_last": "P-loc of the worst tenth of clients",
    "personal_{}_last": "P-glob, their models on the public test set",
    "distribution_{}_last": "P-dist, on the public test set weighted by their own labels",
    "distribution_{}_worst_last": "P-dist of the worst tenth of clients",
}
"""Metrics of clients' own models in a summary, by the name of the task's metric."""


OF_CLIENTS = (
    "Each client is measured with its own model, or the global one where it has none, by its private records or "
    "labels: no epsilon covers these numbers."
)
AVERAGE = "average of the rounds' models"


def show_run(run: "Run", folder: Path) -> None:
    """Print a finished run's tables, or the command that resumes an unfinished one."""
    if run.finished:
        show_result(run.result, folder)
    else:
        done, rounds = len(run.history), run.experiment.train.rounds
        console().print(f"stopped after round {done} of {rounds}; go on with: fedceo run --resume {folder}")


def show_result(result: dict[str, Any], folder: Path) -> None:
    """Print one run: its settings, its accuracies, its privacy rows."""
    out = console()
    out.print(
        f"{result['method']} on {result['data']} with {result['model']}: {result['clients']} clients, "
        f"{result['rounds']} rounds, seed {result['seed']}, {result['seconds']:.1f} s ({result['engine']} engine, "
        f"{result['device']}{workers_of(result)})"
    )
    out.print(f"regime: {result['regime']}{noise_of(result)}")
    show_accuracy(summary_of(result), metric_of(result), out)
    for field, value in result.get("elected", {}).items():
        voted = "nobody has voted on it" if value is None else f"{value:g}, elected by the votes of clients' records"
        out.print(f"{field}: {voted}")
    if result.get("global_model_caveat"):
        out.print(f"its global model is {result['global_model_caveat']}")
    show_privacy(result["privacy"], out)
    study = study_of(folder)
    if study is not None:
        rows = ", ".join(f"{row['observer']} {or_none(row['epsilon'])}" for row in study["rows"])
        out.print(f"a private study chose this run; the epsilons of the whole study: {rows}")
    if result["ended_early"]:
        out.print(f"ended early by {result['ended_early']}")
    if result["discarded_rounds"]:
        out.print(f"{result['discarded_rounds']} rounds had too few reports and were discarded")
    if result["nonfinite_updates"]:
        out.print(f"{result['nonfinite_updates']} updates were NaN or Inf and counted as zero")
    if not result.get("model_is_finite", True):
        out.print(NOT_FINITE)
    out.print(f"results: {folder}")


def show_comparison(runs: Mapping[str, "Run"], folder: Path) -> None:
    """Print several runs as one table, and the privacy rows of those that have any."""
    out = console()
    rows = []
    averaged = any("average" in summary_of(run.result) for run in runs.values())
    names = NAMES | ({"average": AVERAGE} if averaged else {})
    for name, run in runs.items():
        metric = metric_of(run.result)
        accuracies = [metric.number(summary_of(run.result).get(key)) for key in names]
        sigma = f"{run.result['noise_multiplier']:.2f}" if run.result["noise_multiplier"] else "-"
        rows.append([name, run.result["regime"], sigma, *accuracies, f"{run.result['seconds']:.1f}"])
    columns = [Column(name) for name in ("noise multiplier", *names.values(), "seconds")]
    show_table(
        out,
        [Column("", "name"), Column("regime", "words"), *columns],
        rows,
        title=f"test {', '.join(filter(None, (metric.words, metric.unit)))}",
    )
    for name, run in runs.items():
        accuracy = summary_of(run.result)
        if accuracy.get("last_unsmoothed") is not None:
            shown = metric_of(run.result).number(accuracy["last_unsmoothed"])
            out.print(f"{name}'s last round smoothed; {without_smoothing(accuracy)}: {shown}")
    seen: list[Any] = []
    for run in runs.values():
        rows = run.result["privacy"]
        if rows not in seen and any(row["epsilon"] is not None for row in rows):
            seen.append(rows)
            same = [other for other in runs if runs[other].result["privacy"] == rows]
            out.print(f"what is learnt of one client, {' and '.join(same)}:")
            show_privacy(rows, out)
    out.print(f"results: {folder}  (one run each: differences of a few points are noise)")


def show_accuracy(summary: Mapping[str, Any], metric: Metric, out: Console) -> None:
    """Print the metric of the global model and, where it was measured, of the clients' personal models."""
    rows = [(name, metric.number(summary[key])) for key, name in NAMES.items()]
    if "average" in summary:
        rows.append((AVERAGE, metric.number(summary["average"])))
    if "last_unsmoothed" in summary:
        unsmoothed = metric.number(summary["last_unsmoothed"])
        rows.append((f"the last round smoothed; {without_smoothing(summary)}", unsmoothed))
    show_table(out, [Column(f"test {metric.words} of the global model", "words"), Column(metric.unit)], rows)
    found = [(name, summary.get(key.format(metric.name))) for key, name in PERSONAL_NAMES.items()]
    rows = [(name, metric.number(value)) for name, value in found if value is not None]
    if rows:
        head = f"{metric.words} for single clients, last round"
        show_table(out, [Column(head, "words"), Column(metric.unit)], rows)
        out.print(OF_CLIENTS)


def show_privacy(rows: list[dict[str, Any]], out: Console) -> None:
    """Print privacy rows, one for each observer."""
    if all(row["epsilon"] is None for row in rows):
        out.print(f"privacy: none ({rows[0]['assumption']})")
        return
    for_all, own = shared([row["assumption"] for row in rows])
    notes = list(dict.fromkeys(own))
    shown: list[dict[str, Cell]] = [
        row | {"epsilon": or_none(row["epsilon"]), "delta": f"{row['delta']:.1e}", "note": str(notes.index(note) + 1)}
        for row, note in zip(rows, own, strict=True)
    ]  # fmt: skip
    several = len({row["mechanism"] for row in rows}) > 1
    columns = [column for column in PRIVACY_COLUMNS if several or column.name != "mechanism"]
    same, columns = apart(columns, shown, kept=("observer", "epsilon", "note"))
    if same:
        out.print(same, highlight=False)
    show_table(out, columns, [[row[column.name] for column in columns] for row in shown])
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=2)
    grid.add_column(overflow="fold")
    for number, note in enumerate(notes, 1):
        grid.add_row(f"{number:>2}", note)
    if for_all:
        grid.add_row(" *", f"every row: {joined(*for_all)}")
    for words in dict.fromkeys(adjacency(row["adjacency"], row["unit"]) for row in rows):
        grid.add_row(" *", words)
    out.print(grid, highlight=False)


def workers_of(result: dict[str, Any]) -> str:
    """The Ray workers that trained, in words; empty where the process itself did."""
    workers = result.get("workers")
    if workers is None:
        return ""
    lost = f", {workers['lost']} lost and replaced" if workers["lost"] else ""
    return f", {workers['count']} Ray workers on {workers['machines']} machines{lost}"


def noise_of(result: dict[str, Any]) -> str:
    """The noise multiplier in words; empty where there is no noise."""
    return f", noise multiplier {result['noise_multiplier']:.3g}" if result["noise_multiplier"] else ""


def without_smoothing(accuracy: Mapping[str, Any]) -> str:
    """The round that shows the model without smoothing, in words."""
    t = accuracy["last_unsmoothed_round"]
    return "no round without smoothing was measured" if t is None else f"round {t}, which did not smooth"

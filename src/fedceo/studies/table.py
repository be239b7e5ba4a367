"""One table of many runs: mean and spread over seeds, best and last, the regime and epsilons beside every number."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedceo.accounting.printed import in_hundredths
from fedceo.simulation.summary import global_model_caveat
from fedceo.studies.cells import Cell
from fedceo.tasks import metric_of, summary_of

COLUMNS = (
    "experiment", "method", "data", "model", "regime", "sigma", "seeds", "last", "last sd", "average", "average sd",
    "best", "best sd", "unsmoothed", "at best validation", "P-loc", "P-loc, worst tenth", "P-glob", "P-dist",
    "P-dist sd", "P-dist, worst tenth", "epsilon outsider", "epsilon server", "epsilon of", "tuned", "seconds",
    "metric",
)  # fmt: skip

MARKDOWN = str.maketrans({"|": r"\|", "\n": " "})


def rows_of(cells: Sequence[Cell], results: Sequence[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """One row for each experiment, over its seeds, with accuracies in percent of the test set.

    `metric` is what stands in the place of the accuracy for other tasks, None for the accuracy.
    `average` is that of an average of models of several rounds, where [release] asks for one. `best` is chosen on the
    test set and so optimistic. `unsmoothed` is the accuracy in the last evaluated round without a smoothing, where the
    last round has one. Epsilons are the largest over the seeds, and `epsilon of` says of what they are. `tuned` says
    how the settings were chosen, where a tuning wrote them. `caveat`, which is for the screen and goes into no file,
    says which model was measured where no participant holds that model.
    """
    groups: dict[str, list[tuple[Cell, dict[str, Any]]]] = {}
    for cell, result in zip(cells, results, strict=True):
        groups.setdefault(cell.name, [])
        if result is not None:
            groups[cell.name].append((cell, result))
    return [_row(name, found) for name, found in groups.items()]


def _row(name: str, found: list[tuple[Cell, dict[str, Any]]]) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys((*COLUMNS, "caveat")) | {"experiment": name, "seeds": len(found)}
    if not found:
        return row
    cell, first = found[0]
    row |= {
        "method": first["method"],
        "data": first["data"],
        "model": first["model"],
        "regime": first["regime"],
        "sigma": first["noise_multiplier"],
        "tuned": cell.experiment.note,
        "caveat": global_model_caveat(cell.experiment),
    }
    metric = metric_of(first)
    if metric.about:
        row["metric"] = metric.label
    for column, key in (
        ("last", "last"), ("average", "average"), ("best", "best"), ("unsmoothed", "last_unsmoothed"),
        ("at best validation", "at_best_validation"),
        ("P-loc", f"local_{metric.name}_last"), ("P-loc, worst tenth", f"local_{metric.name}_worst_last"),
        ("P-glob", f"personal_{metric.name}_last"),
        ("P-dist", f"distribution_{metric.name}_last"),
        ("P-dist, worst tenth", f"distribution_{metric.name}_worst_last"),
    ):  # fmt: skip
        summaries = [summary_of(result) for _, result in found]
        values = [metric.scaled(summary[key]) for summary in summaries if summary.get(key) is not None]
        if values:
            row[column] = statistics.fmean(values)
            if f"{column} sd" in row:
                row[f"{column} sd"] = statistics.stdev(values) if len(values) > 1 else None
    for observer in ("outsider", "server"):
        row[f"epsilon {observer}"] = _largest_epsilon([result["privacy"] for _, result in found], observer)
    row["epsilon of"] = _promise([row for _, result in found for row in result["privacy"]])
    row["seconds"] = statistics.fmean(result["seconds"] for _, result in found)
    return row


def _largest_epsilon(all_rows: Sequence[Sequence[Mapping[str, Any]]], observer: str) -> float | None:
    """The largest epsilon in the observer's first rows of all runs; None if one of them has no epsilon."""
    found = [next((row["epsilon"] for row in rows if row["observer"] == observer), None) for rows in all_rows]
    known = [epsilon for epsilon in found if epsilon is not None]
    return max(known) if len(known) == len(found) else None


def _promise(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Unit, delta and adjacency of all epsilons; None where there is none."""
    kinds = (
        f"a {row['unit']}, delta {row['delta']:.2g}, {row['adjacency']}" for row in rows if row["epsilon"] is not None
    )
    return "; ".join(dict.fromkeys(kinds)) or None


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def to_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    shown = _shown(rows)
    lines = ["| " + " | ".join(shown) + " |", "|" + "---|" * len(shown)]
    lines += ["| " + " | ".join(show(row, column).translate(MARKDOWN) for column in shown) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _shown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns in which some row has an entry, without the spreads, which stand beside their means."""
    return [c for c in COLUMNS if not c.endswith(" sd") and any(row[c] is not None for row in rows)]


def show(row: Mapping[str, Any], column: str) -> str:
    """One entry as text: 71.25 ± 0.31."""
    value = row[column]
    if value is None:
        return "-"
    if isinstance(value, float):
        if column.startswith("epsilon"):
            return in_hundredths(value)
        text = f"{value:.2f}" if column not in ("sigma", "seconds") else f"{value:.3g}"
        spread = row.get(f"{column} sd")
        return text if spread is None else f"{text} ± {spread:.2f}"
    return str(value)

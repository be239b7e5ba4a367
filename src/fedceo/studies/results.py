"""The file that a sweep leaves for pages of results: every run's numbers and all that one needs to believe them."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedceo.simulation.folder import RunFolder
from fedceo.studies.cells import Cell
from fedceo.tasks import is_measured, metric_of

CURVES = ("test", "validation", "local", "personal", "distribution")
"""Whose accuracies, or other metrics, are kept over rounds."""


def results_of(
    cells: Sequence[Cell], results: Sequence[dict[str, Any] | None], errors: Mapping[int, str]
) -> list[dict[str, Any]]:
    """One entry for each run: its name, seed, experiment, result and accuracies over rounds, or its error.

    Args:
        errors: the message of each cell whose result is None, by the cell's number.
    """
    entries = []
    for number, (cell, result) in enumerate(zip(cells, results, strict=True)):
        entry: dict[str, Any] = {"name": cell.name, "seed": cell.experiment.seed}
        entry["experiment"] = cell.experiment.model_dump(exclude_none=True, exclude={"data": {"path", "root"}})
        if result is None:
            entry["error"] = errors[number]
        else:
            entry |= {"result": result, "curves": _curves(RunFolder(cell.folder).history())}
        entries.append(entry)
    return entries


def _curves(history: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The rounds that were evaluated, and the accuracies measured in them."""
    measured = [record for record in history if is_measured(record)]
    metric = metric_of(measured[0]).name if measured else ""
    curves = {name: [record.get(name) for record in measured] for name in (f"{of}_{metric}" for of in CURVES)}
    said = {name: values for name, values in curves.items() if any(value is not None for value in values)}
    return {"round": [record["round"] for record in measured]} | said

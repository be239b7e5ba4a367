"""The file that a sweep leaves for pages of results: every run's numbers and all that one needs to believe them."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedceo.experiment.file import Experiment
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
        if result is None:
            entries.append(entry_of(cell.name, cell.experiment, {"error": errors[number]}))
        else:
            done = {"result": result, "curves": curves_of(RunFolder(cell.folder).history())}
            entries.append(entry_of(cell.name, cell.experiment, done))
    return entries


def entry_of(name: str, experiment: Experiment, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of one run; outcome: its result and curves, or its error."""
    told = experiment.model_dump(exclude_none=True, exclude={"data": {"path", "root"}})
    return {"name": name, "seed": experiment.seed, "experiment": told, **outcome}


def curves_of(history: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The rounds that were evaluated, and the accuracies measured in them."""
    measured = [record for record in history if is_measured(record)]
    metric = metric_of(measured[0]).name if measured else ""
    curves = {name: [record.get(name) for record in measured] for name in (f"{of}_{metric}" for of in CURVES)}
    said = {name: values for name, values in curves.items() if any(value is not None for value in values)}
    return {"round": [record["round"] for record in measured]} | said

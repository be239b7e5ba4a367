"""The file that a sweep leaves for pages of results: every run's numbers and all that one needs to believe them."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedceo.simulation.folder import RunFolder
from fedceo.studies.cells import Cell

CURVES = ("test_accuracy", "validation_accuracy", "local_accuracy", "personal_accuracy", "distribution_accuracy")


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
    measured = [record for record in history if "test_accuracy" in record]
    curves = {name: [record.get(name) for record in measured] for name in CURVES}
    said = {name: values for name, values in curves.items() if any(value is not None for value in values)}
    return {"round": [record["round"] for record in measured]} | said

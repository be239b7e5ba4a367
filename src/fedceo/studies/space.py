"""The values that `fedceo tune` tries, and best values at their edge, beyond which better ones may lie."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedceo.experiment.file import Experiment
from fedceo.studies.cells import combinations
from fedceo.studies.tune import changed, search_space


def searched(experiment: Experiment, grid: Sequence[str]) -> dict[str, list[Any]]:
    """The values of each "section.field" that are tried: those of the grid, or else the method's own with the
    experiment's, smallest first where they are numbers."""
    if not grid:
        return {field: _in_order(values) for field, values in search_space(experiment)[1].items()}
    found: dict[str, list[Any]] = {}
    for chosen in combinations(grid):
        changed(experiment, chosen)  # which refuses a field or value that is none
        for field, value in chosen.items():
            found.setdefault(field, []).append(value)
    return {field: list(dict.fromkeys(values)) for field, values in found.items()}


def _in_order(values: list[Any]) -> list[Any]:
    are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return sorted(values) if are_numbers else values


def beyond_edges(space: Mapping[str, Sequence[Any]], tuned: Experiment) -> dict[str, str]:
    """For each field whose best value is the least or the largest of several numbers tried, the grid that goes beyond.

    The new value is as far from the best one as that is from its neighbour, by their ratio.
    """
    found = {}
    for field, values in space.items():
        section, _, name = field.partition(".")
        best = getattr(getattr(tuned, section), name)
        numbers = sorted(value for value in values if isinstance(value, int | float) and not isinstance(value, bool))
        if len(numbers) < 2 or numbers[0] <= 0 or best not in (numbers[0], numbers[-1]):
            continue
        neighbour = numbers[1] if best == numbers[0] else numbers[-2]
        further = best * best / neighbour
        if isinstance(best, int):
            further = round(further)
        if further != best and further > 0:
            rounded = float(f"{further:.3g}")
            tried = sorted((rounded if rounded != best else further, best, neighbour))
            found[field] = f"{field}=[{', '.join(f'{value:.6g}' for value in tried)}]"
    return found

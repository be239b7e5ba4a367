"""The values that the cells of a table are tuned over, and how a grid grows while the best value lies at its end.

A grid is fields of an experiment with the values of each; its trials are all combinations. One rule for every method:
while the best trial has the least or the largest value of a field in LIMITS, the grid grows by one value there.
"""

import itertools
from collections.abc import Sequence
from math import floor, log10
from typing import Any

Changes = dict[str, Any]
"""Fields of an experiment, "section.field", and a value of each."""
Grid = dict[str, list[Any]]
"""Fields and the values that are tried of each, ascending."""

RATE, CLIP = "train.learning_rate", "privacy.clip"
OWN_RATE, HEAD_RATE = "method.personal_learning_rate", "method.head_learning_rate"
LIMITS = {RATE: (0.001, 10.0), CLIP: (0.01, 3.0), OWN_RATE: (0.001, 10.0), HEAD_RATE: (0.001, 10.0)}
"""The least and the largest value up to which a field's values may grow."""

RATES = [0.03, 0.1, 0.3, 1.0]
MANY_RATES = [0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2]
MANY_RATES += [0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0]
WITHOUT_SETTINGS = ("local", "fedavg", "fedceo-damp-voted")
"""Methods of silos that have nothing but the rate to tune; they have as many trials as the others."""
PULLS = [0.03, 0.1, 0.3, 1.0, 3.0]
OWN_RATES = [0.01, 0.03, 0.1, 0.3, 1.0]
PRIORS = [0.5, 1.0, 1.5, 2.0, 3.0]
STRENGTHS = [0.03, 0.1, 0.3, 1.0, 3.0]
SETTINGS: dict[str, tuple[str, list[Any]]] = {
    "fedavg-finetune": ("method.home_rounds", [1, 3, 8, 15, 25]),
    "mr-mtl": ("method.strength", PULLS),
    "ditto": ("method.strength", PULLS),
    "ppsgd": (OWN_RATE, OWN_RATES),
    "centaur": (HEAD_RATE, OWN_RATES),
    "label-prior": ("method.strength", PRIORS),
    "fedceo": ("method.strength", STRENGTHS),
    "fedceo-spare-mean": ("method.strength", STRENGTHS),
    "fedceo-damp": ("method.alpha", [0.1, 0.25, 0.5, 0.75, 1.0]),
    "fedceo-damp-mean": ("method.alpha", [0.1, 0.25, 0.5, 0.75, 1.0]),
}
"""The one setting of a method of silos besides its rate, by the method's name in the file."""


def silos_grid(method: str) -> Grid:
    """The trials of a method of experiments/silos; for one setting held fixed, the rates alone."""
    rates = MANY_RATES if method in WITHOUT_SETTINGS else RATES
    return {RATE: rates} | dict([SETTINGS[method]] if method in SETTINGS else [])


def user_level_grid(clips: bool) -> Grid:
    """The trials of user-level tables; clips: whether updates are clipped at all."""
    return {RATE: [0.01, 0.02, 0.05, 0.1, 0.2]} | ({CLIP: [0.05, 0.1, 0.2, 0.5, 1.0]} if clips else {})


def combinations(grid: Grid) -> list[Changes]:
    """Every combination of the values."""
    return [dict(zip(grid, chosen, strict=True)) for chosen in itertools.product(*grid.values())]


def joined(grid: Grid, tried: Sequence[Changes]) -> Grid:
    """The grid with all values that trials have of its fields."""
    return {field: sorted({*values, *(each[field] for each in tried)}) for field, values in grid.items()}


def grown(grid: Grid, best: Changes) -> Grid | None:
    """The grid with a value more at every end where the best trial lies; None where it lies at none that may grow."""
    found = {field: [*values, *_further(field, values, best[field])] for field, values in grid.items()}
    return {field: sorted(values) for field, values in found.items()} if found != grid else None


def _further(field: str, values: Sequence[Any], best: Any) -> list[float]:
    """The next values beyond the ends that the best one is at, within the field's limits."""
    if field not in LIMITS:
        return []
    low, high = LIMITS[field]
    steps = (1, 2, 5) if any(_digit(value) in (2, 5) for value in values) else (1, 3)
    ladder = [float(f"{step}e{power}") for power in range(-4, 3) for step in steps]
    below = [value for value in ladder if low <= value < min(values)][-1:] if best == min(values) else []
    return below + ([value for value in ladder if max(values) < value <= high][:1] if best == max(values) else [])


def _digit(value: float) -> int:
    """The first digit of a number that is not 0."""
    return round(value / 10 ** floor(log10(value) + 1e-9))

"""Warnings of `fedceo tune` about best values at the edge of what was tried, with the command that goes beyond."""

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from fedceo.cli.notes import note


def warn_of_edges(
    tuned: Mapping[str, tuple[Any, float]], grid: list[str], command: Callable[[str, str], list[str]]
) -> None:
    """Print a line for every best value at an edge.

    Args:
        tuned: the tuned experiments by name.
        command: the arguments of `fedceo tune`, from an experiment's name and the grid that goes beyond.
    """
    from fedceo.studies.space import beyond_edges, searched

    for name, (experiment, _) in tuned.items():
        for field, wider in beyond_edges(searched(experiment, grid), experiment).items():
            typed = shlex.join(["fedceo", "tune", *command(name, wider)])
            note(f"{name}: the best {field} is at the edge of what was tried; look beyond it with: {typed}")


def widened(grid: list[str], wider: str) -> list[str]:
    """The options of the same grid with more values of one field: the same study, which runs only what is new."""
    from fedceo.studies.cells import combinations

    found = []
    for each in grid:
        ((field, *_), *_) = combinations([each])
        if field == wider.partition("=")[0]:
            values = {chosen[field] for chosen in (*combinations([each]), *combinations([wider]))}
            each = f"{field}={json.dumps(sorted(values))}"
        found += ["--grid", each]
    return found

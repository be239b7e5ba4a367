"""Runs of a private study: the chosen one carries the epsilons of the whole study, the others must not be passed on.

study.json   in the folder of the chosen run: the study's rows
draws.json   in the folder `private`, above the folders of all trials: how many there are, their settings and scores
"""

from pathlib import Path
from typing import Any

from fedceo.errors import UsageError
from fedceo.simulation.durable import read_json

STUDY, DRAWS = "study.json", "draws.json"


def check_may_leave(run: Path) -> None:
    """Refuse a trial of a private study in its own place: the study's epsilon is that of the chosen run alone."""
    if (run.resolve().parent / DRAWS).exists():
        raise UsageError(f"{run}: a trial of a private study, of which only the chosen run may be passed on")


def study_of(run: Path) -> dict[str, Any] | None:
    """What the study that chose the run promises, where one did."""
    if not (run / STUDY).exists():
        return None
    found: dict[str, Any] = read_json(run / STUDY, expected=True)
    return found


def rows_of_study(rows: list[dict[str, Any]], study: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of a run with the epsilons of the study that chose it; a row that the study does not speak of has none."""
    promised = {(row["observer"], row["unit"]): row for row in study["rows"]}
    found = []
    for row in rows:
        nothing = {"epsilon": None, "accountant": "none", "assumption": _unpromised(row)}
        of_study = promised.get((row["observer"], row["unit"]), nothing)
        found.append(row | {name: of_study[name] for name in nothing})
    return found


def _unpromised(row: dict[str, Any]) -> str:
    """Why a row has no epsilon in a study: for the reason that one run has none, or because nothing is known."""
    words: str = row["assumption"]
    return words if row["epsilon"] is None else "the study that chose this run promises nothing here"

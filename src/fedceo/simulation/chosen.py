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
    """Rows of a run with the epsilons of the study that chose it; an observer whom it does not speak of has none."""
    promised = {row["observer"]: row for row in study["rows"]}
    nothing = {"epsilon": None, "accountant": "none", "assumption": "the study that chose this run promises nothing"}
    return [
        row | {name: promised.get(row["observer"], nothing)[name] for name in ("epsilon", "accountant", "assumption")}
        for row in rows
    ]

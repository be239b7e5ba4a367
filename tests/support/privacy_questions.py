"""Questions to the accountant about the plan that the specification's numbers are for."""

from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any

import pytest

from fedceo.accounting.plan import Plan, Question, Realised
from fedceo.accounting.pld import Round, averages_epsilon
from fedceo.accounting.rows import Row, account

DELTA = 1e-5
SIGMAS = (1.0, 1.5, 2.0)
OF_THE_PLAN = {field.name for field in fields_of(Plan)}


def question(sigma: float = 1.0, mechanism: str = "distributed", **fields: Any) -> Question:
    """N=100, K=10, T=300, with any field of the plan, or of what was realised, changed."""
    usual = {"clients": 100, "cohort": 10, "rounds": 300, "delta": DELTA}
    planned, realised = _split(usual | fields)
    return Question(Plan(noise_multiplier=sigma, mechanism=mechanism, **planned), Realised(**realised))


def changed(asked: Question, **fields: Any) -> Question:
    """The question with any field of its plan, or of what was realised, changed."""
    planned, realised = _split(fields)
    return Question(replace(asked.plan, **planned), replace(asked.realised, **realised))


def _split(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of the plan, and those of what was realised."""
    planned = {name: value for name, value in fields.items() if name in OF_THE_PLAN}
    return planned, {name: value for name, value in fields.items() if name not in OF_THE_PLAN}


def rows(asked: Question) -> dict[str, Row]:
    """The first row of each observer."""
    found: dict[str, Row] = {}
    for row in account(asked.plan, asked.realised):
        found.setdefault(row.observer, row)
    return found


def epsilon(asked: Question, observer: str = "outsider") -> float:
    """The epsilon of an observer's first row, which must be a number."""
    found = rows(asked)[observer].epsilon
    assert found is not None
    return found


def epsilon_of_plan(plan: Plan, observer: str = "outsider", realised: Realised | None = None) -> float:
    """The epsilon of an observer's first row, asked with a plan and what was realised of it."""
    return epsilon(Question(plan, realised or Realised()), observer)


def poisson(multiplier: float, rate: float = 0.1, rounds: int = 300, adjacency: str = "zero-out") -> float:
    """The epsilon of Poisson cohorts whose size is hidden."""
    return averages_epsilon(((Round.of(rate, multiplier, adjacency, hidden_size=True), rounds),), DELTA)


def by_sigma(*wanted: float) -> list[tuple[float, float]]:
    """One wanted number for each of SIGMAS, as parameters of a test."""
    return list(zip(SIGMAS, wanted, strict=True))


def one_percent(value: float) -> Any:
    return pytest.approx(value, rel=0.01)

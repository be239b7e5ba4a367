"""The plan that the specification's numbers are for, and short ways to ask about it."""

from typing import Any

import pytest

from fedceo.accounting.pld import Round, averages_epsilon
from fedceo.accounting.rows import Row, Spec, account

DELTA = 1e-5
SIGMAS = (1.0, 1.5, 2.0)


def spec(sigma: float = 1.0, mechanism: str = "distributed", **fields: Any) -> Spec:
    plan = {"clients": 100, "cohort": 10, "rounds": 300, "delta": DELTA, **fields}
    return Spec(noise_multiplier=sigma, mechanism=mechanism, **plan)


def rows(asked: Spec) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for row in account(asked):
        found.setdefault(row.observer, row)
    return found


def epsilon(asked: Spec, observer: str = "outsider") -> float:
    found = rows(asked)[observer].epsilon
    assert found is not None
    return found


def poisson(multiplier: float, rate: float = 0.1, rounds: int = 300, adjacency: str = "zero-out") -> float:
    return averages_epsilon(((Round.of(rate, multiplier, adjacency, hidden_size=True), rounds),), DELTA)


def by_sigma(*wanted: float) -> list[tuple[float, float]]:
    return list(zip(SIGMAS, wanted, strict=True))


def one_percent(value: float) -> Any:
    return pytest.approx(value, rel=0.01)

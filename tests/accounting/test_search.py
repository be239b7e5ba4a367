"""Zeros and minima against scipy.optimize, which commands do not wait for."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from fedceo.accounting.search import minimum, zero


@given(st.floats(0.01, 99.0), st.floats(0.2, 30.0), st.sampled_from([1e-3, 1e-9]))
def test_a_zero_is_never_before_that_of_scipy_and_hardly_behind_it(place: float, bend: float, precision: float) -> None:
    asked: list[float] = []

    def falling(x: float) -> float:
        asked.append(x)
        return math.expm1((place - x) / bend)

    found = zero(falling, 0.0, 100.0, precision)
    theirs = optimize.brentq(falling, 0.0, 100.0, rtol=1e-14)
    assert theirs - 1e-12 <= found <= theirs + precision + 1e-12
    asked.clear()
    zero(falling, 0.0, 100.0, precision)
    assert len(asked) <= math.ceil(math.log2(100.0 / precision)) + 3


def test_the_zero_of_a_smooth_function_takes_few_questions() -> None:
    asked: list[float] = []

    def falling(x: float) -> float:
        asked.append(x)
        return 3.0 - x - 0.01 * x**2

    assert falling(zero(falling, 0.0, 50.0, 5e-9)) == pytest.approx(0.0, abs=1e-8)
    assert len(asked) < 16


@given(st.floats(-19.0, 29.0), st.floats(0.1, 10.0), st.floats(0.5, 3.0))
def test_a_minimum_is_that_of_scipy(place: float, scale: float, power: float) -> None:
    def valley(x: float) -> float:
        return scale * abs(x - place) ** (1 + power) - 2.0 if x < 29.5 else math.inf

    found, least = minimum(valley, -20.0, 30.0, precision=1e-2)
    assert abs(found - place) <= 1e-2
    assert least == valley(found)

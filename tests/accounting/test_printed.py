"""A printed epsilon is never less than the epsilon, and hardly more."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedceo.accounting.printed import in_hundredths, rounded_up

EPSILONS = st.floats(1e-3, 1e6)


@given(EPSILONS)
def test_three_digits_are_never_less_and_hardly_more(epsilon: float) -> None:
    found = rounded_up(epsilon)
    assert found is not None and epsilon <= found <= epsilon * 1.0101
    assert rounded_up(found) == found


@given(EPSILONS)
def test_hundredths_are_never_less_and_hardly_more(epsilon: float) -> None:
    assert epsilon <= float(in_hundredths(epsilon)) <= epsilon + 0.01 + 1e-9 * epsilon


@pytest.mark.parametrize(
    ("epsilon", "digits", "hundredths"),
    [
        (1.1, 1.1, "1.10"),
        (2.01, 2.01, "2.01"),
        (160.97186, 161.0, "160.98"),
        (7.99943, 8.0, "8.00"),
        (0.0, 0.0, "0.00"),
    ],
)
def test_numbers_that_floats_do_not_hold(epsilon: float, digits: float, hundredths: str) -> None:
    assert (rounded_up(epsilon), in_hundredths(epsilon)) == (digits, hundredths)


def test_what_is_no_number() -> None:
    assert rounded_up(None) is None and in_hundredths(None) == "none"
    assert rounded_up(math.inf) == math.inf and in_hundredths(math.inf) == "inf"

"""The zero and the minimum of a function of one number, for commands that need not wait for scipy.optimize."""

import math
from collections.abc import Callable

GOLDEN = (math.sqrt(5) - 1) / 2


def zero(function: Callable[[float], float], low: float, high: float, precision: float) -> float:
    """A place where a falling function is not above zero, at most `precision` behind that where it ceases to be.

    It is above zero at `low` and not at `high`. By ITP (Oliveira and Takahashi 2020), which has the secant's speed and
    never takes two steps more than bisection.
    """
    at_low, at_high, width = function(low), function(high), high - low
    most = math.ceil(math.log2(max(width / precision, 1.0))) + 1
    for step in range(most):
        if high - low <= precision:
            break
        middle, secant = (low + high) / 2, (high * at_low - low * at_high) / (at_low - at_high)
        towards = math.copysign(1.0, middle - secant)
        place = secant + towards * min(0.2 / width * (high - low) ** 2, abs(middle - secant))
        reach = precision * 2.0 ** (most - step - 1) - (high - low) / 2
        if abs(place - middle) > reach:
            place = middle - towards * reach
        found = function(place)
        if found > 0:
            low, at_low = place, found
        else:
            high, at_high = place, found
    return high


def minimum(function: Callable[[float], float], low: float, high: float, precision: float) -> tuple[float, float]:
    """The place of the least value of a function that falls and then rises, within `precision`, and that value."""
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > precision:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = function(right)
    return (left, at_left) if at_left <= at_right else (right, at_right)

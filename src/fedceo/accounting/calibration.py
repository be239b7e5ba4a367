"""The noise multiplier that a wanted epsilon needs."""

import math
from dataclasses import replace

from scipy import optimize

from fedceo.accounting.plan import AS_PLANNED, Plan, Realised
from fedceo.accounting.rows import answer
from fedceo.errors import UsageError

LEAST, MOST = 1e-2, 1e4
"""Noise multipliers that are tried."""
PRECISION = 1e-4
"""The multiplier found is at most this fraction above the smallest that does."""


def calibrate(target_epsilon: float, observer: str, plan: Plan, realised: Realised = AS_PLANNED) -> float:
    """The noise multiplier sigma with which the observer's (first) row has an epsilon of at most target_epsilon.

    The noise multiplier of the plan itself does not matter. Epsilon falls as sigma grows, so the root is bracketed
    between powers of two and found on logarithmic scales, where epsilon over sigma is nearly a straight line.
    """
    if not (math.isfinite(target_epsilon) and target_epsilon > 0):
        raise UsageError(f"target epsilon: {target_epsilon}, expected a finite number above zero")

    def epsilon(multiplier: float) -> float:
        found = answer(replace(plan, noise_multiplier=multiplier), observer, realised)
        if found.epsilon is None:
            raise UsageError(f"target_epsilon: no noise gives the {observer} an epsilon: {found.assumption}")
        return found.epsilon

    def excess(log_multiplier: float) -> float:
        # zero and infinity have no logarithm, and only their sign matters
        return math.log(min(max(epsilon(math.exp(log_multiplier)), 1e-9), 1e9) / target_epsilon)

    enough = 1.0
    while epsilon(enough) > target_epsilon:
        if enough >= MOST:
            beside = "" if plan.counts is None else f" beside {plan.counts.of} with noise {plan.counts.noise:g}"
            raise UsageError(
                f"target_epsilon: {target_epsilon:g} for the {observer} at delta {plan.delta:g}, which no noise "
                f"multiplier up to {MOST:g}{beside} reaches"
            )
        enough = min(2 * enough, MOST)
    too_little = enough / 2
    while epsilon(too_little) <= target_epsilon:
        if too_little <= LEAST:
            return too_little
        enough, too_little = too_little, max(too_little / 2, LEAST)
    root = optimize.brentq(excess, math.log(too_little), math.log(enough), xtol=PRECISION / 4)
    for safety in (PRECISION / 2, PRECISION):
        if epsilon(math.exp(root + safety)) <= target_epsilon:
            return float(math.exp(root + safety))
    return enough

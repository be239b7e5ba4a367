"""Exponents with confidence intervals: one least-squares line in log-log for every seed, Student's t over the seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

FLOOR_SHARE = 0.25
"""A point counts only if what is left of epsilon_u without noise is at most this share of it."""


@dataclass(frozen=True)
class Fit:
    """y ~ x^slope.

    Attributes:
        slope: mean over seeds.
        low, high: ends of its 95 % confidence interval.
        points: the x that were used.
    """

    slope: float
    low: float
    high: float
    points: tuple[float, ...]

    @property
    def text(self) -> str:
        return f"{self.slope:.2f} ({self.low:.2f} to {self.high:.2f})"

    def meets(self, exponent: float) -> bool:
        """Whether the exponent is inside the interval."""
        return self.low <= exponent <= self.high


def fit(values: Mapping[float, Sequence[float]]) -> Fit | None:
    """values: x -> y of every seed, the seeds in the same order everywhere; None with fewer than three points."""
    if len(values) < 3:
        return None
    x = np.log(list(values))
    slopes = np.polyfit(x, np.log(np.array(list(values.values()), float)), 1)[0]
    mean, error = float(slopes.mean()), float(slopes.std(ddof=1)) / math.sqrt(len(slopes))
    reach = float(stats.t.ppf(0.975, len(slopes) - 1)) * error
    return Fit(mean, mean - reach, mean + reach, tuple(values))


def above_floor(values: Mapping[float, Sequence[float]], floors: Mapping[float, float]) -> dict[float, Sequence[float]]:
    """The points whose epsilon_u is the noise's doing: cohorts, unfinished descent and shrinkage leave a floor."""
    return {x: y for x, y in values.items() if min(y) > 0 and floors[x] <= FLOOR_SHARE * float(np.mean(y))}

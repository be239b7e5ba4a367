"""The binomial law by scipy.special, for commands that need not wait for scipy.stats."""

import math
from bisect import bisect_left

import numpy as np
import numpy.typing as npt
from scipy import special


def at_most(count: int, trials: int, probability: float) -> float:
    """The probability of so many or fewer."""
    if not 0 <= count < trials:
        return float(count >= trials)
    return float(special.betaincc(count + 1, trials - count, probability))


def above(count: int, trials: int, probability: float) -> float:
    """The probability of more; accurate where it is tiny."""
    if not 0 <= count < trials:
        return float(count < 0)
    return float(special.betainc(count + 1, trials - count, probability))


def exactly(counts: npt.NDArray[np.float64], trials: int, probability: float) -> npt.NDArray[np.float64]:
    """The probability of each count from 0 to the number of trials."""
    others = trials - counts
    ways = -special.betaln(others + 1, counts + 1) - math.log(trials + 1)
    logs = ways + special.xlogy(counts, probability) + special.xlog1py(others, -probability)
    return np.asarray(np.exp(logs), dtype=np.float64)


def quantile(level: float, trials: int, probability: float) -> int:
    """The least count that is not exceeded with probability `level`."""
    return bisect_left(range(trials), True, key=lambda count: at_most(count, trials, probability) >= level)

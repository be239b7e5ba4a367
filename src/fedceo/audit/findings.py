"""What an audit finds: single checks, and the bounds that keep false alarms of all of them together below ALPHA.

Every limit here is a theorem, not an approximation that holds in the middle of a distribution: exact chi-square tails,
Chernoff's bound for counts, Hoeffding's for random signs, and Laurent and Massart's for sums of products of normals.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import special, stats

Floats: TypeAlias = npt.NDArray[np.float64]

ALPHA = 1e-6
CHECKS = 50
"""Checks with a chance of false alarm, at most; they share ALPHA."""
LEVEL = ALPHA / CHECKS


@dataclass(frozen=True)
class Finding:
    """One check.

    Attributes:
        check: what was looked at, in a word or two.
        passed: whether what was measured is as expected.
        measured: the worst value met.
        expected: in words and numbers, what would have passed.
    """

    check: str
    passed: bool
    measured: float
    expected: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def variance_finding(check: str, sums: Floats, degrees: Floats, of: str = "what is claimed") -> Finding:
    """Are sums of squares of standard normals chi-square, each with its degrees of freedom?

    The finding shows the worst sum if there is a bad one, otherwise the one with the most degrees of freedom.
    """
    if sums.size == 0:
        return Finding(check, True, 1.0, f"{of}; there was nothing to look at")
    tails = np.minimum(stats.chi2.cdf(sums, degrees), stats.chi2.sf(sums, degrees))
    tail = LEVEL / 2 / sums.size
    worst = int(np.lexsort((-np.abs(sums / degrees - 1), tails))[0])
    passed = bool(tails[worst] >= tail)
    shown = int(degrees.argmax()) if passed else worst
    count = float(degrees[shown])
    least, most = (float(stats.chi2.ppf(tail, count) / count), float(stats.chi2.isf(tail, count) / count))
    return Finding(check, passed, float(sums[shown] / count), f"{least:.4g} to {most:.4g} times {of}")


def normal_finding(check: str, scores: Floats, of: str) -> Finding:
    """Are scores, each standard normal or at least no wider (random signs), all within what chance explains?"""
    most = math.sqrt(2 * math.log(2 * max(scores.size, 1) / LEVEL))
    worst = float(np.abs(scores).max()) if scores.size else 0.0
    return Finding(check, worst <= most, worst, f"at most {most:.3g} standard deviations {of}")


def product_limit(products: Floats | float, degree: Floats | float, tests: int) -> Any:
    """The largest sum of products of independent standard normals that chance explains.

    Args:
        products: how many are in a sum.
        degree: in how many of them one normal is, at most.
        tests: sums that are looked at.
    """
    exponent = math.log(2 * max(tests, 1) / LEVEL)
    return np.sqrt(2 * np.asarray(products, dtype=np.float64) * exponent) + np.asarray(degree) * exponent


def count_finding(check: str, counts: Sequence[tuple[float, float, float]], of: str) -> Finding:
    """Are counts as frequent as independent events of their rates?

    Args:
        counts: (how often, of how many, at which rate); sums of hypergeometric counts are narrower and allowed.
    """
    if not counts:
        return Finding(check, True, 0.0, f"nothing to look at: {of}")
    seen, trials, rates = (np.array(column, dtype=np.float64) for column in zip(*counts, strict=True))
    shares = np.divide(seen, trials, out=rates.copy(), where=trials > 0)
    divergence = special.rel_entr(shares, rates) + special.rel_entr(1 - shares, 1 - rates)
    surprise = float(np.max(trials * divergence)) / math.log(10)
    most = -math.log10(LEVEL / 2 / len(counts))
    return Finding(check, surprise <= most, surprise, f"one in 10^x, x at most {most:.3g}: {of}")


def normality_finding(standard: Floats) -> Finding:
    """Are the values those of a standard normal distribution?"""
    distance, probability = stats.kstest(standard, "norm")
    most = float(stats.kstwobign.isf(LEVEL)) / math.sqrt(max(standard.size, 1))
    expected = f"at most {most:.3g} from the normal distribution function"
    return Finding("normality", bool(probability >= LEVEL), float(distance), expected)

"""The number of trials of a private study: random and secret, with the law that the study's epsilon rests on (D19)."""

import math
import secrets
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from scipy import optimize, special

from fedceo.accounting.gaussian import Floats
from fedceo.errors import UsageError

LAWS = ("geometric", "poisson", "negative-binomial")
UNLIKELY = 1e-60
"""Numbers of trials that are less probable, all together, are not listed."""
SMALLEST_GAMMA, MOST_LISTED = 1e-30, 4 * 10**6


@dataclass(frozen=True)
class Trials:
    """The law of the number of trials.

    Attributes:
        law: geometric, at least 1. negative-binomial, at least 1: the truncated one, of which geometric is the shape 1.
            poisson, which may be 0: then nothing is tried and nothing chosen.
        mean: the mean number of trials.
        shape: eta of the truncated negative binomial law, above -1; the smaller, the more unequal the numbers.
    """

    law: str
    mean: float
    shape: float | None = None

    def __post_init__(self) -> None:
        if self.law not in LAWS:
            raise UsageError(f"--law: {self.law!r}, expected one of {', '.join(LAWS)}")
        if (self.law == "negative-binomial") != (self.shape is not None):
            raise UsageError('--shape: belongs to --law "negative-binomial", which needs it')
        if self.shape is not None and not -1 < self.shape <= 100:
            raise UsageError(f"--shape: {self.shape}, expected above -1 and at most 100")
        if not 1 <= self.mean <= 1000:
            raise UsageError(f"--trials: {self.mean:g}, expected a mean of 1 to 1000")
        if self._last > MOST_LISTED:
            raise UsageError(f"--shape: {self.shape} at a mean of {self.mean:g} trials, expected more equal numbers")

    @property
    def is_poisson(self) -> bool:
        return self.law == "poisson"

    @property
    def eta(self) -> float:
        """The shape of the truncated negative binomial law."""
        return 1.0 if self.shape is None else self.shape

    @cached_property
    def gamma(self) -> float:
        """The parameter of the truncated negative binomial law at which it has the mean."""
        if self.mean == 1:
            return 1.0
        if self.eta == 1:
            return 1 / self.mean
        if _mean(SMALLEST_GAMMA, self.eta) < self.mean:
            return SMALLEST_GAMMA
        root = optimize.brentq(
            lambda x: _mean(math.exp(x), self.eta) - self.mean, math.log(SMALLEST_GAMMA), math.log1p(-1e-9)
        )
        return math.exp(root)

    @property
    def _last(self) -> int:
        """A number of trials that is hardly ever exceeded."""
        if self.is_poisson:
            return int(self.mean + 40 * math.sqrt(self.mean) + 200)
        if self.gamma == 1:
            return 1
        # the probabilities of larger numbers fall at least as fast as (1 - gamma)^k k^eta
        powers = max(self.eta, 0.0) * 20
        return math.ceil((math.log(1 / UNLIKELY) + 50 + powers) / -math.log1p(-self.gamma)) + 1

    @cached_property
    def probabilities(self) -> Floats:
        """The probabilities of 0, 1, 2, ... trials, as far as any of them matters."""
        if self.is_poisson:
            counts = np.arange(self._last + 1)
            found = np.exp(special.xlogy(counts, self.mean) - self.mean - special.gammaln(counts + 1))
            return np.asarray(found, dtype=np.float64)
        if self.gamma == 1:
            return np.array([0.0, 1.0])
        counts = np.arange(1, self._last + 1)
        if self.eta == 0:
            logs = counts * math.log1p(-self.gamma) - np.log(counts * -math.log(self.gamma))
        else:
            # the product of (l + eta) / (l + 1) for l < k; of its first factor only the sign may be negative
            factors = np.log(np.abs(np.concatenate([[self.eta], counts[:-1] + self.eta]) / counts))
            logs = counts * math.log1p(-self.gamma) + np.cumsum(factors)
            logs -= math.log(abs(math.expm1(-self.eta * math.log(self.gamma))))
        return np.concatenate([[0.0], np.exp(logs)])

    def draw(self) -> int:
        """A number of trials, by coins of the operating system's generator."""
        tails = np.cumsum(self.probabilities[::-1])[::-1]
        for count, (here, at_least) in enumerate(zip(self.probabilities, tails, strict=True)):
            if _coin(min(float(here / at_least), 1.0)):
                return count
        return len(tails) - 1


def _mean(gamma: float, eta: float) -> float:
    if eta == 0:
        return (1 / gamma - 1) / -math.log(gamma)
    return eta * (1 - gamma) / (gamma * -math.expm1(eta * math.log(gamma)))


def _coin(probability: float) -> bool:
    """True with exactly this probability: every float is a fraction of whole numbers."""
    exact = Fraction(probability)
    return secrets.randbelow(exact.denominator) < exact.numerator

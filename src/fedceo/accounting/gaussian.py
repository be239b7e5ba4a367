"""How much Gaussian releases reveal about one client where nothing is hidden by sampling: closed forms.

mu is sensitivity over standard deviation; releases at mu_1, mu_2, ... compose to mu = sqrt(mu_1^2 + mu_2^2 + ...).
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import special

from fedceo.accounting.binomial import above, at_most, exactly
from fedceo.accounting.search import zero

Floats: TypeAlias = npt.NDArray[np.float64]

NEGLIGIBLE = 1e-6
"""The fraction of delta that counts may have which are not looked at but counted as fully exposed."""


def gaussian_delta(mu: float | Floats, epsilon: float | Floats) -> Floats:
    """delta(epsilon) of the Gaussian mechanism with mu = sensitivity / standard deviation (D1)."""
    epsilon = np.asarray(epsilon)
    inside = special.log_ndtr(mu / 2 - epsilon / mu)
    outside = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    return np.maximum(0.0, np.exp(inside) - np.exp(outside))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of the Gaussian mechanism at delta; T releases at mu_t compose to mu = sqrt(sum mu_t^2)."""
    return _smallest_epsilon(lambda epsilon: float(gaussian_delta(mu, epsilon)), mu, delta)


def drawn_gaussian_epsilon(mu: float, rate: float, rounds: int, delta: float, cap: int | None = None) -> float:
    """Gaussian releases at mu in M ~ Bin(T, q) rounds, M seen by all: delta(epsilon) = E_M[delta_M(epsilon)] (D2).

    cap: releases after that many have nothing of the client in them.
    """
    return drawn_gaussians_epsilon((mu, rounds), (0.0, 0), rate, delta, cap)


@lru_cache(maxsize=512)
def drawn_gaussians_epsilon(
    larger: tuple[float, int], smaller: tuple[float, int], rate: float, delta: float, cap: int | None = None
) -> float:
    """The same with rounds of two kinds, each (mu, rounds); the client is in each round with probability q.

    A cap is taken to spare the rounds of the smaller mu, which is never optimistic.
    """
    (mu, rounds), (other_mu, other_rounds) = larger, smaller
    counts, weights, left_out = binomial(rounds, rate, NEGLIGIBLE * delta)
    others, other_weights, others_left_out = binomial(other_rounds, rate, NEGLIGIBLE * delta)
    if cap is not None:
        counts = np.minimum(counts, cap)
    kept = others[None, :] if cap is None else np.minimum(others[None, :], (cap - counts)[:, None])
    mus = np.sqrt(counts[:, None] * mu**2 + kept * other_mu**2)
    mass = weights[:, None] * other_weights[None, :]
    seen = mus > 0
    mus, mass = mus[seen], mass[seen]
    if mus.size == 0:
        return 0.0
    exposed = left_out + others_left_out
    return _smallest_epsilon(lambda e: float(mass @ gaussian_delta(mus, e)) + exposed, float(mus.max()), delta)


def binomial(trials: int, probability: float, negligible: float) -> tuple[Floats, Floats, float]:
    """The likely counts, their probabilities, and the probability of all others, at most twice what is negligible."""
    # the tails themselves are looked at: scipy's quantiles are lost in rounding errors below 1e-16
    smallest = _first(lambda m: at_most(m, trials, probability) > negligible, trials)
    largest = _first(lambda m: above(m, trials, probability) <= negligible, trials)
    counts = np.arange(smallest, largest + 1, dtype=np.float64)
    left_out = above(largest, trials, probability) + at_most(smallest - 1, trials, probability)
    return counts, exactly(counts, trials, probability), left_out


def _first(holds: Callable[[int], bool], last: int) -> int:
    """The first number from 0 to last for which something holds that holds from there on."""
    return bisect_left(range(last), True, key=holds)


def _smallest_epsilon(delta_at: Callable[[float], float], largest_mu: float, delta: float) -> float:
    if largest_mu == 0 or delta_at(0.0) <= delta:
        return 0.0
    # zero-concentrated privacy bounds what the Gaussian mechanism can reach: rho + 2 sqrt(rho ln(1/delta))
    largest = largest_mu**2 / 2 + largest_mu * math.sqrt(2 * math.log(2 / delta))
    if delta_at(largest) > delta:
        return math.inf
    # in logarithms, in which it is nearly straight; zero is as good as any number below delta
    return zero(lambda epsilon: math.log(max(delta_at(epsilon), 1e-300) / delta), 0.0, largest, 1e-10 * largest)

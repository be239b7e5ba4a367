"""Renyi divergences of releases, for what composes by them: the epsilon of a study of many runs (D18, D19).

A curve holds upper bounds of the divergence at each of `ORDERS`, the larger of both directions. Releases compose by
adding their curves, and a release that is one of several has at most the largest of theirs. Infinity says nothing.
"""

import math
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.polynomial import legendre
from scipy import special

from fedceo.accounting.composition import log_peak
from fedceo.accounting.gaussian import Floats, binomial
from fedceo.accounting.rounds import Averages, Round, Stratum

Curve: TypeAlias = Floats
"""Divergences at each of ORDERS."""

ORDERS: Floats = 1 + np.geomspace(1e-2, 2e3, 180)
"""Orders alpha. The best order of an epsilon lies among them, and steps of 7 % cost less than 0.1 % of epsilon."""
NEGLIGIBLE = 45.0
"""Integrands below e^-45 of their largest value are left out."""
FURTHEST = 150.0
"""Standard deviations from the means at which an integrand may have its mass."""
COARSE = 256
"""Points at which an integrand is looked at to find where it matters."""
PANELS, NODES = 24, 10
"""Panels of an integral, and nodes of Gauss and Legendre's rule in each."""
LEFT_OUT = 1e-54
"""The probability of all that curves of a run do not speak of: draws that are negligible at the smallest delta."""
SLACK = 1e-9
"""The fraction that is added to every integral for its own errors, which are far smaller."""


Mixture: TypeAlias = tuple[tuple[float, float], ...]


class Pair(NamedTuple):
    """P against Q on a line, mixtures of unit normals, (weight, mean) each; of interest is what lies above the cut."""

    p: Mixture
    q: Mixture
    cut: float


def gaussian_curve(mu: float) -> Curve:
    """The Gaussian mechanism whose result moves by mu standard deviations: alpha mu^2 / 2."""
    return ORDERS * mu**2 / 2


def drawn_curve(rate: float, drawn: Curve, otherwise: Curve | float = 0.0) -> Curve:
    """One of two releases, the first with probability `rate`; the observer sees which."""
    if rate >= 1:
        return drawn
    theta = ORDERS - 1
    return np.logaddexp(math.log(rate) + theta * drawn, math.log1p(-rate) + theta * otherwise) / theta


def drawn_gaussians_curve(
    larger: tuple[float, int], smaller: tuple[float, int], rate: float, cap: int | None = None
) -> Curve:
    """Gaussian releases of two kinds, each (mu, rounds), in rounds that the client is in, which all see (D2).

    A cap is taken to spare the rounds of the smaller mu, which is never optimistic.
    """
    (mu, rounds), (other_mu, other_rounds) = larger, smaller
    if cap is None or cap >= rounds + other_rounds:
        kinds = (
            rounds * drawn_curve(rate, gaussian_curve(mu)),
            other_rounds * drawn_curve(rate, gaussian_curve(other_mu)),
        )
        return kinds[0] + kinds[1]
    counts, weights, _ = binomial(rounds, rate, 0.0)
    others, other_weights, _ = binomial(other_rounds, rate, 0.0)
    counts = np.minimum(counts, cap)
    kept = np.minimum(others[None, :], (cap - counts)[:, None])
    squares = (counts[:, None] * mu**2 + kept * other_mu**2).ravel()
    mass = (weights[:, None] * other_weights[None, :]).ravel()
    theta = ORDERS - 1
    exponents = theta[:, None] * ORDERS[:, None] * squares[mass > 0] / 2
    return special.logsumexp(exponents, axis=1, b=mass[mass > 0]) / theta


def averages_curve(averages: Averages) -> Curve:
    """The averages of all rounds, memberships secret."""
    return sum((rounds * round_curve(average) for average, rounds in averages if rounds > 0), np.zeros_like(ORDERS))


@lru_cache(maxsize=256)
def round_curve(average: Round) -> Curve:
    """One released average; strata that are left out are not in it."""
    theta = ORDERS - 1
    worst = np.zeros_like(ORDERS)
    for alternative in average.alternatives:
        for reverse in (False, True):
            excess = [math.log(s.probability) + _log_excess(average, s, reverse) for s in alternative]
            if excess:
                worst = np.maximum(worst, np.logaddexp(0.0, np.logaddexp.reduce(excess)) / theta)
    return worst


def epsilon_at(curve: Curve, delta: float) -> float:
    """The least epsilon at delta that any order gives (D13); infinite where none does."""
    theta = ORDERS - 1
    found = float(np.min(curve + (_log_peaks() - math.log(delta)) / theta))
    return max(found, 0.0)


def log_delta_at(curves: Curve, epsilon: float) -> Floats:
    """ln of the least delta at epsilon that any order gives, at most 0; orders are the last axis."""
    return np.minimum(np.min((ORDERS - 1) * (curves - epsilon) + _log_peaks(), axis=-1), 0.0)


@lru_cache(maxsize=1)
def _log_peaks() -> Floats:
    return np.array([log_peak(theta) for theta in ORDERS - 1])


def _log_excess(average: Round, s: Stratum, reverse: bool) -> Floats:
    """ln(E_Q[(P/Q)^alpha] - 1) at each order, at most.

    With f(t) = t^alpha - 1 - alpha (t - 1), convex and zero at 1, this is the mean of f over ratios above 1, which the
    profile of this direction bounds, and over those below 1, which that of the other direction bounds (D18).
    """
    if average.known_memberships:
        log_moment = (ORDERS - 1) * gaussian_curve(average.shift / s.multiplier)
        return math.log(s.rate) + log_moment + np.log(-np.expm1(-log_moment))
    above, below = _pair(average, s, reverse), _pair(average, s, not reverse)
    return np.logaddexp(_log_part(above), _log_part(Pair(below.q, below.p, below.cut))) + SLACK


def _pair(average: Round, s: Stratum, reverse: bool) -> Pair:
    """The pair whose profile at eps >= 0 is the one of `profiles`; P is in excess above the cut."""
    near, far = 1.0 / s.multiplier, 2.0 / s.multiplier

    def sampled(mu: float) -> Pair:
        return Pair(_mixed(s.rate, mu), ((1.0, 0.0),), mu / 2)

    moved = near if average.hidden_size else far
    if average.adjacency == "replace-one":
        opposite = Pair(_mixed(s.rate, near), _mixed(s.rate, -near), 0.0)
        return opposite if average.hidden_size else sampled(far)
    if average.adjacency == "add-remove" or average.hidden_size:
        return Pair(((1.0, 0.0),), _mixed(s.rate, -moved), -moved / 2) if reverse else sampled(moved)
    if reverse:
        return sampled(near)
    return Pair(_mixed(s.rate, far), _mixed(s.rate, near), 1.5 * near)


def _mixed(rate: float, mu: float) -> Mixture:
    return ((rate, mu),) if rate >= 1 else ((1 - rate, 0.0), (rate, mu))


def _log_part(pair: Pair) -> Floats:
    """ln of the integral of Q f(P/Q) above the cut at each order; infinite where nodes would be too far apart."""
    means = [mean for _, mean in (*pair.p, *pair.q)]
    # P^alpha Q^(1 - alpha) has its mass no further from the means than this
    far = ORDERS * (max(means) - min(means))
    known = far <= FURTHEST
    orders, highest = ORDERS[known, None], max(means) + far[known] + math.sqrt(2 * NEGLIGIBLE)
    coarse = np.linspace(pair.cut, highest, COARSE, axis=1)
    heights = _log_integrand(pair, orders, coarse)
    matters = heights > heights.max(axis=1, keepdims=True) - NEGLIGIBLE
    first = np.maximum(matters.argmax(axis=1) - 1, 0)
    last = np.minimum(COARSE - matters[:, ::-1].argmax(axis=1), COARSE - 1)
    rows = np.arange(len(orders))
    x, weights = _nodes(coarse[rows, first], coarse[rows, last])
    found = np.full(ORDERS.shape, math.inf)
    found[known] = special.logsumexp(_log_integrand(pair, orders, x), axis=1, b=weights)
    return found


def _nodes(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Nodes and weights of a composite rule of Gauss and Legendre for each interval, (intervals, nodes)."""
    nodes, weights = legendre.leggauss(NODES)
    places = (np.arange(PANELS)[:, None] + (1 + nodes) / 2).ravel() / PANELS
    length = (high - low)[:, None]
    return low[:, None] + length * places, length * np.tile(weights, PANELS) / (2 * PANELS)


def _log_integrand(pair: Pair, orders: Floats, x: Floats) -> Floats:
    log_q = _log_density(pair.q, x)
    return log_q + _log_convex(orders, _log_density(pair.p, x) - log_q)


def _log_density(mixture: Mixture, x: Floats) -> Floats:
    parts = [math.log(weight) - (x - mean) ** 2 / 2 for weight, mean in mixture]
    return np.logaddexp.reduce(parts) - math.log(2 * math.pi) / 2


def _log_convex(order: Floats, log_ratio: Floats) -> Floats:
    """ln f(e^l) for f(t) = t^alpha - 1 - alpha (t - 1)."""
    scaled, linear = order * log_ratio, order * np.expm1(np.minimum(log_ratio, 700.0))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        plain = np.log(np.maximum(np.expm1(scaled) - linear, 0.0))
        # t^alpha (1 - (1 + alpha (t - 1)) / t^alpha), where t^alpha may overflow
        large = scaled + np.log1p(-(1 + linear) * np.exp(-scaled))
        # the first terms of the series, (alpha^k - alpha) l^k / k!, where the difference would lose its digits
        small = np.log(order * (order - 1) / 2) + 2 * np.log(np.abs(log_ratio))
        small += np.log1p((order + 1) * log_ratio / 3 + (order**2 + order + 1) * log_ratio**2 / 12)
    found = np.where(scaled > 30, large, plain)
    return np.where(np.abs(log_ratio) * (order + 1) < 1e-3, small, found)

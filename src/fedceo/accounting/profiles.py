"""Profiles of one round: upper bounds of the hockey-stick divergence delta(eps) at eps >= 0.

Forwards the client's contribution is in P, and P is held against Q; in reverse Q is held against P. Each profile is
the largest that any federation attains (D3, D4, D12), or the sum of such over strata that the observer tells apart.
"""

import math

import numpy as np
from scipy import special

from fedceo.accounting.gaussian import Floats, gaussian_delta
from fedceo.accounting.rounds import Round, Stratum


def profile(average: Round, epsilons: Floats, *, reverse: bool) -> Floats:
    """The worst alternative at each epsilon; strata that are left out are not in it."""
    mixtures = (
        sum(s.probability * _of_stratum(average, s, epsilons, reverse) for s in alternative)
        for alternative in average.alternatives
    )
    return np.maximum.reduce([np.broadcast_to(np.asarray(mixture), epsilons.shape) for mixture in mixtures])


def largest_loss(average: Round, deviations: float, *, reverse: bool) -> float:
    """The loss of a draw that lies so many standard deviations off."""

    def loss(s: Stratum) -> float:
        def unsampled(mu: float) -> float:
            return mu**2 / 2 + deviations * mu

        def rises(mu: float) -> float:
            """ln(1 - q + q e^loss) of a client that is in."""
            return unsampled(mu) + math.log(s.rate + (1 - s.rate) * math.exp(-unsampled(mu)))

        def falls(mu: float) -> float:
            """-ln(1 - q + q e^-loss) of a client that seems not to be in, which is at most -ln(1 - q)."""
            if s.rate == 1:
                return unsampled(mu)
            bound, loss = -math.log1p(-s.rate), -math.log1p(s.rate * math.expm1(-unsampled(mu)))
            # near the bound a profile would be lost in rounding errors, and beyond it there is none
            return loss if loss < 0.99 * bound else 1.001 * bound

        near, far = 1.0 / s.multiplier, 2.0 / s.multiplier
        if average.known_memberships:
            return unsampled(average.shift * near)
        moved = near if average.hidden_size else far
        if average.adjacency == "replace-one":
            return rises(near) + falls(near) if average.hidden_size else rises(far)
        if average.adjacency == "add-remove" or average.hidden_size:
            return falls(moved) if reverse else rises(moved)
        return rises(near) if reverse else min(rises(far), unsampled(near))

    return max((loss(s) for s in average.strata), default=0.0)


def _of_stratum(average: Round, s: Stratum, epsilons: Floats, reverse: bool) -> Floats:
    near, far = 1.0 / s.multiplier, 2.0 / s.multiplier
    if average.known_memberships:
        return s.rate * gaussian_delta(average.shift * near, epsilons)
    if average.hidden_size and average.adjacency == "replace-one":
        return _opposite(s.rate, near, epsilons)
    moved = near if average.hidden_size else far
    if average.adjacency == "replace-one":
        return _sampled(s.rate, far, epsilons)
    if average.adjacency == "add-remove" or average.hidden_size:
        return _never_in(s.rate, moved, epsilons) if reverse else _sampled(s.rate, moved, epsilons)
    return _sampled(s.rate, near, epsilons) if reverse else _antipodal(s.rate, near, epsilons)


def _sampled(rate: float, mu: float, epsilons: Floats) -> Floats:
    """H_eps of P = (1-q) N(0) + q N(mu) against Q = N(0): q H_e(N(mu), N(0)) at e = ln(1 + (e^eps - 1)/q) (D3)."""
    small = np.minimum(epsilons, 30.0)
    inner = np.log1p(np.expm1(small) / rate) + (epsilons - small)
    # beyond 30 the two logarithms differ by less than e^-30, and the smaller one gives the larger profile
    return rate * gaussian_delta(mu, inner)


def _never_in(rate: float, mu: float, epsilons: Floats) -> Floats:
    """H_eps of Q = N(0) against P = (1-q) N(0) + q N(mu): a client that is gone was never in (D3)."""
    if rate == 1:
        return gaussian_delta(mu, epsilons)
    profile = np.zeros_like(epsilons)
    possible = epsilons < -math.log1p(-rate)  # beyond that the ratio of Q to P never gets
    rest = -np.expm1(epsilons[possible] + math.log1p(-rate))
    profile[possible] = rest * gaussian_delta(mu, epsilons[possible] + math.log(rate) - np.log(rest))
    return profile


def _antipodal(rate: float, mu: float, epsilons: Floats) -> Floats:
    """H_eps of P = (1-q) N(0) + q N(2 mu) against Q = (1-q) N(0) + q N(mu): all others oppose the client (D12).

    With y = e^(mu x), P - e^eps Q is a parabola in y with one positive root, and positive above it.
    """
    log_rest = math.log1p(-rate) if rate < 1 else -math.inf
    with np.errstate(divide="ignore"):
        linear = epsilons + math.log(rate) - mu**2 / 2
        constant = np.log(np.expm1(np.minimum(epsilons, 30.0))) + np.maximum(epsilons - 30.0, 0.0) + log_rest
    quadratic = math.log(rate) - 2 * mu**2
    root = np.logaddexp(linear, np.logaddexp(2 * linear, math.log(4) + quadratic + constant) / 2)
    threshold = (root - math.log(2) - quadratic) / mu
    full = math.log(rate) + special.log_ndtr(2 * mu - threshold)
    zeroed = epsilons + math.log(rate) + special.log_ndtr(mu - threshold)
    out = constant + special.log_ndtr(-threshold)
    return np.maximum(np.exp(full) - np.exp(zeroed) - np.exp(out), 0.0)


def _opposite(rate: float, mu: float, epsilons: Floats) -> Floats:
    """H_eps of P = (1-q) N(0) + q N(mu) against Q = (1-q) N(0) + q N(-mu), with the parabola of `_antipodal` (D4)."""
    log_rest = math.log1p(-rate) if rate < 1 else -math.inf
    with np.errstate(divide="ignore"):
        linear = np.log(np.expm1(np.minimum(epsilons, 30.0))) + np.maximum(epsilons - 30.0, 0.0) + log_rest
    quadratic = math.log(rate) - mu**2 / 2
    root = np.logaddexp(linear, np.logaddexp(2 * linear, math.log(4) + 2 * quadratic + epsilons) / 2)
    threshold = (root - math.log(2) - quadratic) / mu
    one = math.log(rate) + special.log_ndtr(mu - threshold)
    other = epsilons + math.log(rate) + special.log_ndtr(-mu - threshold)
    out = linear + special.log_ndtr(-threshold)
    return np.maximum(np.exp(one) - np.exp(other) - np.exp(out), 0.0)

"""Epsilons computed without the accountant that is tested: by scipy's normal distribution, by dp-accounting's own
distributions, and by a composition of privacy losses with numpy's FFT."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

Floats = npt.NDArray[np.float64]


def gaussian_delta(mu: Floats | float, epsilon: Floats | float) -> Any:
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)."""
    tail = np.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
    return stats.norm.cdf(mu / 2 - epsilon / mu) - tail


def epsilon_where(delta_at: Callable[[float], float], delta: float) -> float:
    """The root of a falling delta(epsilon)."""
    largest = 1.0
    while delta_at(largest) > delta:
        largest *= 2
    return float(optimize.brentq(lambda e: delta_at(e) - delta, 0.0, largest, rtol=1e-10))


def gaussian_epsilon(mu: float, delta: float) -> float:
    return epsilon_where(lambda e: float(gaussian_delta(mu, e)), delta)


def drawn_gaussian_epsilon(mu: float, rate: float, rounds: int, delta: float) -> float:
    """The binomial mixture over all participations, none left out."""
    counts = np.arange(1, rounds + 1)
    weights = stats.binom.pmf(counts, rounds, rate)
    return epsilon_where(lambda e: float(weights @ gaussian_delta(mu * np.sqrt(counts), e)), delta)


def sampled_gaussian_bounds(z: float, rate: float, steps: int, delta: float, grid: float = 1e-4) -> tuple[float, float]:
    """Epsilon of Poisson-sampled Gaussians from below and from above, by dp-accounting alone."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    def bound(is_pessimistic: bool) -> float:
        one = pld.from_gaussian_mechanism(
            z,
            sampling_prob=rate,
            value_discretization_interval=grid,
            pessimistic_estimate=is_pessimistic,
            use_connect_dots=is_pessimistic,
        )
        return float(one.self_compose(steps).get_epsilon_for_delta(delta))

    return bound(False), bound(True)


def fixed_size_zero_out_epsilon(z: float, rate: float, rounds: int, delta: float, grid: float = 2e-3) -> float:
    """Derivation D3 with numbers of its own: profiles, privacy losses by connecting the dots, an FFT.

    Without the convex envelope, so that it may be a little above what the accountant says where noise is small.
    """
    epsilons: Floats = grid * np.arange(-round(60 / grid), round(60 / grid) + 1, dtype=np.float64)

    def forward(e: Floats) -> Floats:
        """q [(1-b) H(2/z) + b H(1/z)] at e' = ln(1 + (e^eps - 1) / q), with b = e^(eps - e')."""
        inner = np.log1p(np.expm1(e) / rate)
        b = np.exp(e - inner)
        return rate * ((1 - b) * gaussian_delta(2 / z, inner) + b * gaussian_delta(1 / z, inner))

    def reverse(e: Floats) -> Floats:
        return rate * gaussian_delta(1 / z, np.log1p(np.expm1(e) / rate))

    def profile(there: Callable[[Floats], Floats], back: Callable[[Floats], Floats]) -> Floats:
        """Both signs of epsilon: H_eps(P, Q) = 1 - e^eps + e^eps H_-eps(Q, P)."""
        falls, rises = epsilons[epsilons >= 0], epsilons[epsilons < 0]
        return np.concatenate([-np.expm1(rises) + np.exp(rises) * back(-rises), there(falls)])

    return max(
        _composed_epsilon(epsilons, profile(there, back), rounds, delta)
        for there, back in ((forward, reverse), (reverse, forward))
    )


def _composed_epsilon(epsilons: Floats, deltas: Floats, rounds: int, delta: float) -> float:
    """Epsilon of T independent losses whose profile is linear in e^eps between the points."""
    slopes = np.diff(deltas, append=0.0) / np.diff(np.exp(epsilons), append=1.0)
    slopes[-1] = 0.0  # beyond the last point nothing falls any more: its delta is an infinite loss
    mass_of_q = np.diff(slopes, prepend=-1.0)
    mass_of_p = np.maximum(mass_of_q, 0.0) * np.exp(epsilons)
    infinite = max(1.0 - mass_of_p.sum(), 0.0)
    grid, lowest = epsilons[1] - epsilons[0], epsilons[0]
    length = 2 ** math.ceil(math.log2(2 * epsilons.size))  # losses of all rounds fit: they spread as sqrt(T)
    shifted = np.zeros(length)
    shifted[: mass_of_p.size] = mass_of_p
    mean = float(mass_of_p @ epsilons)
    start = round((rounds * mean) / grid)  # the composed losses lie around T times the mean
    composed = np.fft.irfft(np.fft.rfft(shifted) ** rounds, length)
    places = np.arange(length) + rounds * round(lowest / grid)
    places += length * np.round((start - places) / length).astype(int)  # the FFT wraps around
    losses = grid * places
    gone = -math.expm1(rounds * math.log1p(-infinite))
    return epsilon_where(lambda e: gone + float(composed @ -np.expm1(np.minimum(e - losses, 0.0))), delta)

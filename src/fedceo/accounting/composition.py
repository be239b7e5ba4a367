"""Composition of privacy losses by a tilted FFT, which keeps its accuracy at any delta (D13).

A release is a distribution of its privacy loss under P, in one direction (P against Q). `Losses` is one release,
`Composition` several of them, `Mixture` one of several that the observer can tell apart. With the composed loss S,

    delta(eps) = P(S is infinite) + E[(1 - e^(eps - S))_+].

An FFT of probabilities has rounding errors of 1e-16 of the largest of them, which may be far above delta. So they are
multiplied with e^(theta loss) first, which moves the middle of the distribution of S to epsilon, and divided by it
afterwards. What rounding, wrapping around and truncation can take away is bounded and added to delta.
"""

import math
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import fft

from fedceo.accounting.gaussian import Floats
from fedceo.accounting.search import minimum

Complexes: TypeAlias = npt.NDArray[np.complex128]

UNIT = float(np.finfo(np.float64).eps) / 2
"""The largest relative rounding error of one operation."""
OPERATIONS = 16.0
"""A bound of the rounding errors of a level of an FFT, or of a complex power, in units of UNIT."""
SLACK = 1e-6
"""The fraction of delta that is kept for rounding errors in the losses of one round and in sums."""
WRAPPED = 1e-16
"""Tilted probability that may lie outside the window of the FFT."""
ACCURACY = 1e-5
"""Relative error of epsilon that the lattice may add (always upwards)."""
SMALLEST = 745.0
"""An exponent from which on e^-x is nothing."""
LARGEST_LATTICE = 2**20
"""Points of a lattice; where more would be needed, accuracy is given up, upwards."""


class Moments(NamedTuple):
    """ln E[e^(theta S)], and mean and variance of S under the tilted distribution."""

    log_mgf: float
    mean: float
    variance: float


class Spectrum(NamedTuple):
    """The Fourier transform of a tilted distribution, and a bound of its rounding errors at each frequency."""

    values: Complexes
    error: Floats


class Release(Protocol):
    """The privacy loss of something that is released."""

    @property
    def infinite(self) -> float:
        """A bound of the probability that the loss is infinite."""

    @property
    def largest(self) -> float:
        """The largest finite loss."""

    @property
    def rounds(self) -> int:
        """The number of releases that it is composed of."""

    def on_lattice(self, step: float) -> "Release":
        """The same with all losses on multiples of a step, never more private."""

    def moments(self, theta: float) -> Moments:
        """The moments at a tilt."""

    def spectrum(self, theta: float, step: float, size: int) -> Spectrum:
        """The transform of the tilted distribution, wrapped around a lattice of so many points."""


@dataclass(frozen=True, eq=False)
class Losses:
    """Losses of one release, each with its probability, and an infinite one."""

    values: Floats
    probabilities: Floats
    infinite: float

    rounds = 1

    @property
    def largest(self) -> float:
        return float(self.values.max())

    def on_lattice(self, step: float) -> "Losses":
        """Each loss is split between its neighbours on the lattice, so that neither P nor Q gains or loses mass."""
        below = np.floor(self.values / step)
        upper_part = np.expm1(step * below - self.values) / math.expm1(-step)
        upper = self.probabilities * np.clip(upper_part, 0.0, 1.0)
        places, where = np.unique(np.concatenate([below, below + 1]), return_inverse=True)
        masses: Floats = np.bincount(where, np.concatenate([self.probabilities - upper, upper])).astype(np.float64)
        return Losses(step * places[masses > 0], masses[masses > 0], self.infinite)

    @cached_property
    def _logs(self) -> Floats:
        return np.log(self.probabilities)

    def _tilted(self, theta: float) -> tuple[float, Floats]:
        exponents = self._logs + theta * self.values
        shift = float(exponents.max())
        weights = np.exp(exponents - shift)
        total = float(weights.sum())
        return shift + math.log(total), weights / total

    def moments(self, theta: float) -> Moments:
        log_mgf, weights = self._tilted(theta)
        mean = float(weights @ self.values)
        return Moments(log_mgf, mean, float(weights @ (self.values - mean) ** 2))

    def spectrum(self, theta: float, step: float, size: int) -> Spectrum:
        _, weights = self._tilted(theta)
        places = np.rint(self.values / step).astype(np.int64)
        wrapped: Floats = np.bincount(places % size, weights, minlength=size).astype(np.float64)
        error = _transform_error(size, wrapped)
        error += UNIT * OPERATIONS * (1 + float(weights @ np.abs(self._logs + theta * self.values)))
        values = fft.rfft(wrapped)
        return Spectrum(values, np.full(values.size, error))


@dataclass(frozen=True, eq=False)
class Composition:
    """Several releases, each so many times."""

    parts: tuple[tuple[Release, int], ...]

    @property
    def infinite(self) -> float:
        return sum(times * part.infinite for part, times in self.parts)

    @property
    def largest(self) -> float:
        return sum(times * part.largest for part, times in self.parts)

    def moments(self, theta: float) -> Moments:
        found = [(part.moments(theta), times) for part, times in self.parts]
        return Moments(*(sum(times * moments[k] for moments, times in found) for k in range(3)))

    @property
    def rounds(self) -> int:
        return sum(times * part.rounds for part, times in self.parts)

    def on_lattice(self, step: float) -> "Composition":
        return Composition(tuple((part.on_lattice(step), times) for part, times in self.parts))

    def spectrum(self, theta: float, step: float, size: int) -> Spectrum:
        return reduce(_product, (_power(part.spectrum(theta, step, size), times) for part, times in self.parts))


@dataclass(frozen=True, eq=False)
class Mixture:
    """One of several releases, drawn with the given probabilities; the observer sees which."""

    parts: tuple[tuple[float, Release], ...]

    @property
    def infinite(self) -> float:
        return sum(probability * part.infinite for probability, part in self.parts)

    @property
    def largest(self) -> float:
        return max(part.largest for _, part in self.parts)

    def _tilted(self, theta: float) -> tuple[float, Floats, list[Moments]]:
        found = [part.moments(theta) for _, part in self.parts]
        exponents = np.array([math.log(p) + m.log_mgf for (p, _), m in zip(self.parts, found, strict=True)])
        log_mgf = float(np.logaddexp.reduce(exponents))
        return log_mgf, np.exp(exponents - log_mgf), found

    def moments(self, theta: float) -> Moments:
        log_mgf, weights, found = self._tilted(theta)
        means, variances = np.array([m.mean for m in found]), np.array([m.variance for m in found])
        mean = float(weights @ means)
        return Moments(log_mgf, mean, float(weights @ (variances + (means - mean) ** 2)))

    @property
    def rounds(self) -> int:
        return max(part.rounds for _, part in self.parts)

    def on_lattice(self, step: float) -> "Mixture":
        return Mixture(tuple((probability, part.on_lattice(step)) for probability, part in self.parts))

    def spectrum(self, theta: float, step: float, size: int) -> Spectrum:
        _, weights, _ = self._tilted(theta)
        found = [part.spectrum(theta, step, size) for _, part in self.parts]
        values = sum(weight * spectrum.values for weight, spectrum in zip(weights, found, strict=True))
        error = sum(weight * spectrum.error for weight, spectrum in zip(weights, found, strict=True))
        return Spectrum(np.asarray(values), np.asarray(error) + OPERATIONS * UNIT)


def _transform_error(size: int, transformed: Floats) -> float:
    """A bound of the rounding error of any value of an FFT, which is one of their Euclidean norm."""
    levels = math.log2(size) + 1
    return UNIT * OPERATIONS * levels * math.sqrt(size) * float(np.linalg.norm(transformed))


def _product(one: Spectrum, other: Spectrum) -> Spectrum:
    error = np.abs(one.values) * other.error + one.error * (np.abs(other.values) + other.error)
    return Spectrum(one.values * other.values, error + OPERATIONS * UNIT * np.abs(one.values * other.values))


def _power(one: Spectrum, times: int) -> Spectrum:
    if times == 1:
        return one
    sizes = np.abs(one.values)
    at_most = np.minimum(sizes + one.error, 1.0 + one.error)
    error = times * np.exp((times - 1) * np.log(at_most)) * (one.error + OPERATIONS * UNIT)
    return Spectrum(one.values**times, error)


def epsilon_of(release: Release, delta: float) -> float:
    """An epsilon at which the release has at most delta, near the least one; infinite where there is none."""
    delta = delta * (1 - SLACK) - release.infinite
    if delta <= 0:
        return math.inf
    if release.largest <= 0:
        return 0.0
    theta, chernoff = _chernoff(release, delta)
    upper = min(chernoff, release.largest)
    if upper <= 0:
        return 0.0
    # splitting a loss between points of a lattice adds step^2/12 (1 + theta) to epsilon in each round (D13)
    step = math.sqrt(12 * ACCURACY * upper / (release.rounds * (1 + theta)))
    lowest, highest = _window(release, theta)
    step = max(step, (highest - lowest) / LARGEST_LATTICE)
    return max(min(_inverted(release.on_lattice(step), step, delta, theta), upper), 0.0)


def _chernoff(release: Release, delta: float) -> tuple[float, float]:
    """The tilt with the least epsilon by the bound (1 - e^(eps - S))_+ <= c e^(theta (S - eps)), and that epsilon."""

    def bound(log_theta: float) -> float:
        theta = math.exp(log_theta)
        return (release.moments(theta).log_mgf + log_peak(theta) - math.log(delta)) / theta

    place, least = minimum(bound, -20.0, 30.0, precision=1e-2)
    return math.exp(place), least


def log_peak(theta: float) -> float:
    """ln of the largest value of e^(-theta x) (1 - e^-x), which is theta^theta / (1 + theta)^(1 + theta)."""
    return -theta * math.log1p(1 / theta) - math.log1p(theta)


def _inverted(release: Release, step: float, delta: float, theta: float) -> float:
    """Epsilon from the tilted distribution of the composed loss."""
    log_mgf, mean, _ = release.moments(theta)
    lowest, highest = _window(release, theta)
    first = math.floor(lowest / step)
    size = fft.next_fast_len(math.ceil(highest / step) - first + 2, real=True)
    values, error = release.spectrum(theta, step, size)
    tilted = np.roll(fft.irfft(values, size), -(first % size))
    # errors of single probabilities: those of the transform, averaged by the inverse one, and its own
    uncertain = (float(2 * error.sum()) + _transform_error(size, tilted) * math.sqrt(size)) / size
    places = step * (first + np.arange(size)) - mean
    with np.errstate(over="ignore", invalid="ignore"):
        deltas = _deltas(tilted * np.exp(-theta * places), step)
        peak = math.exp(log_peak(theta))
        lost = uncertain * (1 / (step * theta * (1 + theta)) + peak) + WRAPPED * peak
        bounds = deltas + lost * np.exp(-theta * places)
    # of every point from which on all bounds hold, the first
    target = math.exp(min(math.log(delta) - log_mgf + theta * mean, 700.0))
    too_large = np.flatnonzero(~(bounds <= target))
    place = 0 if too_large.size == 0 else int(too_large[-1]) + 1
    if place == size:
        return math.inf
    if place == 0:
        return float(mean + places[0])
    # between two points of the lattice delta is a straight line in e^eps
    left, right = bounds[place - 1], bounds[place]
    part = (left - target) / (left - right) if math.isfinite(left) else 1.0
    return float(mean + places[place] + math.log(part + (1 - part) * math.exp(-step)))


def _deltas(masses: Floats, step: float) -> Floats:
    """At each point s_i the sum of masses_j (1 - e^(s_i - s_j)) over all points above it, without a subtraction.

    With y_i, the sum of masses_j e^(s_(i+1) - s_j) over j > i, it is the sum over k >= i of y_k (1 - e^-step).
    """
    discounted = np.concatenate([[0.0], masses[:0:-1]])
    count = 1  # terms that each sum has so far; those of the sum so many places before it come next
    while count < len(masses) and step * count < SMALLEST:
        discounted[count:] += math.exp(-step * count) * discounted[:-count]
        count *= 2
    return np.cumsum(discounted)[::-1] * -math.expm1(-step)


def _window(release: Release, theta: float) -> tuple[float, float]:
    """An interval outside of which, on either side, the tilted sum lies with a probability below WRAPPED."""
    log_mgf, mean, variance = release.moments(theta)
    scale = math.sqrt(variance) + 1e-9 * release.largest

    def reach(sign: int) -> float:
        """Markov's inequality for e^(tilt S), with the best of several tilts."""
        tilts = [size / scale for size in (1.0, 2.0, 4.0, 6.0, 8.0, 12.0)]
        rises = [release.moments(theta + sign * tilt).log_mgf - log_mgf for tilt in tilts]
        return sign * min((rise - math.log(WRAPPED)) / tilt for rise, tilt in zip(rises, tilts, strict=True))

    return min(reach(-1), mean), max(reach(1), mean)

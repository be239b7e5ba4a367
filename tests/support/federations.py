"""Epsilons that explicit federations attain: proven lower bounds, by Laplace inversion of densities.

A federation sends fixed numbers: all other clients one, the client another in each of the two worlds. The released sums
of a round are then mixtures of two normal densities, and with L = ln(P/Q)

    M(s) = integral of P e^(s L),   delta(eps) = 1/(2 pi i) integral of M(s)^T e^(-s eps) / (s (s + 1)) ds

along a line to the right of zero. Nothing here is on a grid of losses, and nothing is taken from the accountant or from
a library of privacy accounting. Both integrals are sums by the trapezoidal rule, whose error falls exponentially.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sums:
    """Centres of the sum in units of C: the client out, in, and in with its contribution of the other world.

    Where the other world's is None the client does not exist there: it is never in.
    """

    out: float
    there: float
    other: float | None


ANTIPODAL, ALIKE = Sums(-1, 1, 0), Sums(1, 1, 0)
POISSON, POISSON_REPLACED = Sums(0, 1, 0), Sums(0, 1, -1)
FIXED = {
    "zero-out": (ANTIPODAL, ALIKE),
    "replace-one": (Sums(-1, 1, -1), Sums(0, 1, -1)),
    "add-remove": (Sums(-1, 1, None),),
}
"""Others that send the opposite of the client's contribution, or the same, while a client that is in keeps one out."""
HIDDEN = {"zero-out": (POISSON,), "replace-one": (POISSON_REPLACED,), "add-remove": (POISSON,)}
"""Poisson cohorts with noise on the sum, where nobody is kept out."""


@dataclass(frozen=True)
class Kind:
    """So many rounds, each of one of several strata that the observer can tell apart: (probability, rate, noise)."""

    rounds: int
    strata: tuple[tuple[float, float, float], ...]


def one_kind(rounds: int, rate: float, noise: float) -> tuple[Kind, ...]:
    return (Kind(rounds, ((1.0, rate, noise),)),)


def sizes_that_show(clients: int, cohort: int, rounds: int, sigma: float, delta: float) -> tuple[Kind, ...]:
    """Poisson cohorts of m clients with m of K shares of noise; improbable sizes release nothing."""
    sizes = np.arange(1, clients + 1)
    likely = sizes[stats.binom.logpmf(sizes, clients, cohort / clients) > math.log(delta / rounds) - 7]
    strata = (
        (float(stats.binom.pmf(m, clients, cohort / clients)), m / clients, sigma * math.sqrt(m / cohort))
        for m in likely.tolist()
    )
    return (Kind(rounds, tuple(strata)),)


def attained(kinds: Sequence[Kind], sums: Sequence[Sums], delta: float) -> float:
    """The largest epsilon that one of the federations has, in either direction.

    A direction that this way cannot compute is left out, which only lowers what is attained.
    """
    found = []
    for of in sums:
        for backwards in (False, True):
            with suppress(ArithmeticError):
                found.append(_Inversion(kinds, of, backwards, delta).epsilon())
    return max(found)


def attained_in_one_round(rate: float, noise: float, sums: Sequence[Sums], delta: float) -> float:
    """The same for a single round, by integrating (P - e^eps Q)_+ itself."""

    def epsilon(of: Sums, backwards: bool) -> float:
        width, log_p, loss = _densities(rate, noise, of, backwards, reach=12.0, fineness=4_000)

        def excess(e: float) -> float:
            return float(width * np.sum(np.exp(log_p) * -np.expm1(np.minimum(e - loss, 0.0)))) - delta

        return float(optimize.brentq(excess, 0.0, 1e3)) if excess(0.0) > 0 else 0.0

    return max(epsilon(of, backwards) for of in sums for backwards in (False, True))


class _Inversion:
    """T rounds of one federation in one direction.

    Densities end where, over all rounds, a millionth of delta is left: that only takes away from what is attained, and
    moments of what hardly ever happens would drown all others.
    """

    def __init__(self, kinds: Sequence[Kind], sums: Sums, backwards: bool, delta: float) -> None:
        self.delta = delta
        reach = float(stats.norm.isf(1e-6 * delta / sum(kind.rounds for kind in kinds)))
        self.kinds = [
            (kind.rounds, [(p, *_densities(q, z, sums, backwards, reach)) for p, q, z in kind.strata]) for kind in kinds
        ]

    def log_mgf(self, s: npt.NDArray[np.complex128]) -> npt.NDArray[np.complex128]:
        """The logarithm of M(s)^T, up to multiples of 2 pi i."""
        total = np.zeros(s.shape, dtype=np.complex128)
        for rounds, strata in self.kinds:
            # M(s) - 1 keeps its digits where hardly anything is lost; what is no stratum releases nothing
            rest = np.zeros(s.shape, dtype=np.complex128)
            largest = max(float(np.max(log_p + s.real.max() * loss)) for _, _, log_p, loss in strata)
            shift = max(largest, 0.0) if largest > 600 else 0.0
            for probability, width, log_p, loss in strata:
                for at in np.array_split(np.arange(s.size), max(s.size // 64, 1)):
                    exponent = np.multiply.outer(s[at], loss)
                    term = np.exp(log_p + exponent - shift) - np.exp(log_p - shift)
                    rest[at] += probability * width * term.sum(axis=1)
            total += rounds * (shift + np.log(math.exp(-shift) + rest) if shift else np.log1p(rest))
        return total

    def at(self, theta: float) -> float:
        return float(self.log_mgf(np.array([theta], dtype=np.complex128))[0].real)

    def epsilon(self) -> float:
        delta = self.delta

        def chernoff(log_theta: float) -> float:
            return (self.at(math.exp(log_theta)) - math.log(delta)) / math.exp(log_theta)

        theta = math.exp(optimize.minimize_scalar(chernoff, bounds=(-9.0, 14.0), method="bounded").x)
        nudge = 1e-3 * theta
        before, here, after = (self.at(theta + k * nudge) for k in (-1, 0, 1))
        mean, spread = (after - before) / (2 * nudge), math.sqrt(max(after - 2 * here + before, 0.0)) / nudge
        # the sum repeats after 2 pi / spacing; where 40 standard deviations are too few a finer one says otherwise
        spacing = 2 * math.pi / (40 * spread + 8 * abs(mean) / (1 + theta * spread))
        found = self._root(theta, here, mean, spread, spacing)
        for _ in range(4):
            spacing /= 4
            before, found = found, self._root(theta, here, mean, spread, spacing)
            if abs(found - before) <= 1e-6 * found:
                return found
        raise ArithmeticError("the integral does not settle: losses are too rare and too large for this way")

    def _root(self, theta: float, here: float, mean: float, spread: float, spacing: float) -> float:
        """Epsilon with nodes at this spacing."""
        nodes, values = self._nodes(theta, here, spacing)
        limit = math.log(self.delta)

        def excess(epsilon: float) -> float:
            found = float(spacing / math.pi * np.sum((values * np.exp(-1j * nodes.imag * epsilon)).real))
            return math.log(max(found, 1e-300)) + here - theta * epsilon - limit

        # from above, since far below the mean of the tilted losses nothing is left but rounding errors
        places = [e for e in np.linspace(mean + 6 * spread, mean - 6 * spread, 121).tolist() if e > 0]
        below = next((e for e in places if excess(e) > 0), None)
        if below is None:
            return 0.0
        above = below + spread / 10
        if excess(above) > 0:
            raise ArithmeticError("the root lies above all places: losses are too rare and too large for this way")
        return float(optimize.brentq(excess, below, above, xtol=1e-9 * above))

    def _nodes(
        self, theta: float, here: float, spacing: float
    ) -> tuple[npt.NDArray[np.complex128], npt.NDArray[np.complex128]]:
        """Points on the line and the integrand there, without e^(-s eps), as far as it matters."""
        nodes, values = [], []
        for block in range(400):
            s = np.asarray(theta + 1j * spacing * (64 * block + np.arange(64)), dtype=np.complex128)
            integrand = np.exp(self.log_mgf(s) - here) / (s * (s + 1))
            if block == 0:
                integrand[0] /= 2
            nodes.append(s)
            values.append(integrand)
            if np.max(np.abs(integrand)) < 1e-7 * abs(values[0][0]):
                return np.concatenate(nodes), np.concatenate(values)
        raise ArithmeticError("the integrand falls too slowly: too few rounds for this way")


def _densities(
    rate: float, noise: float, sums: Sums, backwards: bool, reach: float, fineness: int = 20
) -> tuple[float, Floats, Floats]:
    """Width of the steps, ln P and the loss ln P - ln Q, on so many steps in each of the standard deviations."""
    centres = [centre for centre in (sums.out, sums.there, sums.other) if centre is not None]
    width = noise / fineness
    x = np.arange(min(centres) - reach * noise, max(centres) + reach * noise, width)

    def world(other: float | None) -> Floats:
        out = stats.norm.logpdf(x, sums.out, noise)
        if other is None or rate == 0:
            return out
        inside = math.log(rate) + stats.norm.logpdf(x, other, noise)
        return inside if rate == 1 else np.logaddexp(math.log1p(-rate) + out, inside)

    p, q = world(sums.there), world(sums.other)
    return (width, q, q - p) if backwards else (width, p, p - q)

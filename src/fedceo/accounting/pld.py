"""How much T rounds reveal about one client: privacy-loss distributions (PLD) of sampled cohorts.

`profiles` has the profile delta(epsilon) of one round. Connecting its dots gives a distribution of the privacy loss
that is never optimistic (D11), and `composition` composes it over rounds.

Symbols: q the probability that a client is in a round, z the noise multiplier (standard deviation of the noise of the
sum over the clip C), mu = 1/z, T rounds.
"""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy import special

from fedceo.accounting.composition import Composition, Losses, Mixture, Release, epsilon_of
from fedceo.accounting.gaussian import Floats, drawn_gaussian_epsilon, gaussian_epsilon
from fedceo.accounting.profiles import largest_loss, profile
from fedceo.accounting.rounds import Averages, Round, Stratum, largest_rate

GAP = 0.01
"""Gaps between losses at which a profile is taken, relative to the loss and to the width of a Gaussian (D11)."""
SIMILAR = 1.5
"""Noise multipliers that differ by no more than this factor share their points."""
UNLIKELY = 1e-5
"""The fraction of delta that draws far off, of all rounds together, may have; they are counted as fully exposed."""
DIRECTIONS = (False, True)
"""Forwards and in reverse."""


def negligible(delta: float, rounds: int) -> float:
    """A probability of an event in one round that hardly matters over all rounds."""
    return UNLIKELY * delta / max(rounds, 1)


@lru_cache(maxsize=512)
def averages_epsilon(averages: Averages, delta: float) -> float:
    """The epsilon of the averages of all rounds."""
    averages = tuple((average, rounds) for average, rounds in averages if rounds > 0)
    if not averages:
        return 0.0
    total = sum(rounds for _, rounds in averages)
    unlikely = negligible(delta, total)

    def composed(reverse: bool) -> Composition:
        return Composition(tuple((_losses(a, unlikely, reverse), rounds) for a, rounds in averages))

    return max(epsilon_of(composed(reverse), delta) for reverse in DIRECTIONS)


@lru_cache(maxsize=512)
def known_membership_epsilon(averages: Averages, delta: float, cap: int | None = None) -> float:
    """The epsilon if all memberships were known (D2): the smaller of two bounds.

    One has the noise of every round and no cap, the other a cap and in all rounds the least noise of any.

    Args:
        cap: rounds in which a client takes part with anything of its own, at most.
    """
    averages = tuple((average, rounds) for average, rounds in averages if rounds > 0 and average.strata)
    if not averages:
        return 0.0
    strata = [stratum for average, _ in averages for stratum in average.strata]
    rounds = sum(number for _, number in averages)
    adjacency, shift = averages[0][0].adjacency, averages[0][0].shift
    least = min(stratum.multiplier for stratum in strata)
    if adjacency == "add-remove" and not averages[0][0].hidden_size:  # who is gone has no memberships to know
        return gaussian_epsilon(2 / least * math.sqrt(rounds), delta)
    at_least_noise = drawn_gaussian_epsilon(shift / least, largest_rate(averages), rounds, delta, cap)
    if all(stratum.multiplier == least for stratum in strata):
        return at_least_noise
    known = tuple((replace(average, known_memberships=True), number) for average, number in averages)
    return min(at_least_noise, averages_epsilon(known, delta))


@lru_cache(maxsize=512)
def personalised_epsilon(
    average: Round, after: Round, rate: float, upload_mu: float, rounds: int, smoothings: int, delta: float
) -> float:
    """The epsilon of FedCEO with personal restarts, which smooths in S of T rounds (D8).

    Writing A for the PLD of an average, U of a seen upload, R of the round after with the client in it, 0 for no loss:

        A^(T - 2S)  composed with  [(1-q) A + q U ((1-q) 0 + q R)]^S

    where (1-q) 0 + q R takes the place of the bracket's first A unless the number of memberships is hidden.
    """
    upload = Round.of(1.0, 1.0 / upload_mu, "zero-out", hidden_size=True)
    unlikely, nothing = negligible(delta, rounds), Losses(np.zeros(1), np.ones(1), 0.0)

    def composed(reverse: bool) -> Composition:
        seen, ordinary, known_in = (_losses(part, unlikely, reverse) for part in (upload, average, after))
        if smoothings == rounds:
            return Composition(((_drawn(rate, seen, nothing), rounds),))
        known = _drawn(rate, known_in, nothing)
        joined, spared = Composition(((seen, 1), (known, 1))), ordinary if average.hidden_size else known
        blocks = _drawn(rate, joined, spared)
        return Composition(((blocks, smoothings), (ordinary, max(rounds - 2 * smoothings, 0))))

    return max(epsilon_of(composed(reverse), delta) for reverse in DIRECTIONS)


def _drawn(rate: float, drawn: Release, otherwise: Release) -> Mixture:
    if rate >= 1:
        return Mixture(((1.0, drawn),))
    return Mixture(((rate, drawn), (1 - rate, otherwise)))


@lru_cache(maxsize=64)
def _losses(average: Round, unlikely: float, reverse: bool) -> Losses:
    """The privacy losses of one round, never below those of its profile (D11)."""
    parts = [_signed_losses(part, unlikely, reverse) for part in _of_similar_noise(average)]
    values, masses = (np.concatenate([part[k] for part in parts] or [np.zeros(0)]) for k in range(2))
    infinite = sum(part[2] for part in parts) + average.left_out
    rest = max(1.0 - infinite - masses.sum(), 0.0)
    values, masses = np.append(values, 0.0), np.append(masses, rest)
    return Losses(values[masses > 0], masses[masses > 0], infinite)


def _of_similar_noise(average: Round) -> list[Round]:
    """The round as several whose strata have similar noise, so that each has its own points."""
    if len(average.alternatives) > 1:
        return [average]
    parts: list[list[Stratum]] = []
    for stratum in sorted(average.strata, key=lambda s: s.multiplier):
        if parts and stratum.multiplier <= SIMILAR * parts[-1][0].multiplier:
            parts[-1].append(stratum)
        else:
            parts.append([stratum])
    return [replace(average, alternatives=(tuple(part),)) for part in parts]


def _signed_losses(average: Round, unlikely: float, reverse: bool) -> tuple[Floats, Floats, float]:
    """All losses but zero, their probabilities, and that of an infinite one."""
    above, above_masses, infinite = _connected(average, unlikely, reverse)
    below, below_masses, _ = _connected(average, unlikely, not reverse)
    # a loss of -l has e^-l times the probability that it has as a loss of l in the other direction
    return np.append(-below, above), np.append(below_masses * np.exp(-below), above_masses), infinite


def _connected(average: Round, unlikely: float, reverse: bool) -> tuple[Floats, Floats, float]:
    """Positive losses and their probabilities: corners of the profile if it was linear in e^eps between points."""
    epsilons = _points(average, _furthest(average, unlikely, reverse))
    deltas = np.minimum.accumulate(profile(average, epsilons, reverse=reverse))
    falls, gaps = -np.diff(deltas), np.diff(epsilons)
    before = falls / -np.expm1(-gaps)
    after = np.append(falls[1:] / np.expm1(gaps[1:]), 0.0)
    return epsilons[1:], np.maximum(before - after, 0.0), float(deltas[-1])


def _furthest(average: Round, unlikely: float, reverse: bool) -> float:
    """A loss at which the profile is so small that it can be counted as fully exposed."""
    largest = largest_loss(average, -float(special.ndtri(unlikely)), reverse=reverse)
    losses = np.append(np.geomspace(1e-3 * largest, largest, 300)[:-1], largest)
    is_far = np.flatnonzero(profile(average, losses, reverse=reverse) <= unlikely)
    return float(losses[is_far[0]] if is_far.size else largest)


def _points(average: Round, furthest: float) -> Floats:
    """Losses from 0 to the furthest: gaps grow with the loss, up to a part of the width of a Gaussian."""
    width = min(1.0 / s.multiplier for s in average.strata)
    small = min(s.rate * min(1.0 / s.multiplier, 1.0) for s in average.strata)
    ends = [min(end, furthest) for end in (small, max(width, small))]
    found = [np.linspace(0.0, ends[0], math.ceil(1 / GAP) + 1)]
    if ends[1] > ends[0]:
        found.append(np.geomspace(ends[0], ends[1], math.ceil(math.log(ends[1] / ends[0]) / GAP) + 1)[1:])
    if furthest > ends[1]:
        found.append(np.linspace(ends[1], furthest, math.ceil((furthest - ends[1]) / (GAP * ends[1])) + 1)[1:])
    return np.concatenate(found)

"""How much T rounds reveal about one client: privacy-loss distributions (PLD) for sampled cohorts.

dp-accounting has the PLD of Poisson cohorts but not of cohorts of a fixed size drawn without replacement. Derivation D3
gives the profile delta(epsilon) of one such round; connect-the-dots turns it into a PLD that is never optimistic, and
dp-accounting composes it over rounds.

Symbols: q the probability that a client is in a round, z the noise multiplier (standard deviation of the noise of the
sum over the clip C), mu = 1/z, T rounds. Divergences of a pair of worlds (P, Q) are taken forwards, with the client's
contribution in P, and in reverse.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy import optimize, stats

from fedceo.accounting.gaussian import Floats, drawn_gaussian_epsilon, gaussian_delta, gaussian_epsilon

PLD: TypeAlias = Any  # dp_accounting has no types

ACCURACY = 1e-5
"""Relative error of epsilon that the discretisation of the privacy loss may add (always upwards)."""
FINEST_STEP, COARSEST_STEP = 1e-5, 1e-2
LARGEST_GRID = 100_000
LARGEST_MU = 10.0
LARGEST_LOSS = 600.0  # e^loss must be a number
TAIL = 10.0  # standard deviations kept of a Gaussian; what lies beyond is counted as fully exposed


class Stratum(NamedTuple):
    """Rounds of one kind: their probability, the chance q that the client is in one, the noise multiplier z."""

    probability: float
    rate: float
    multiplier: float


@dataclass(frozen=True)
class Round:
    """One released average, as an observer sees it.

    Each alternative is a mixture of strata that the observer can tell apart; the worst alternative counts. With
    hidden_size the cohort is a Poisson one whose size nobody sees, in a single stratum.
    """

    alternatives: tuple[tuple[Stratum, ...], ...]
    adjacency: str
    hidden_size: bool = False
    left_out: float = 0.0  # probability of strata not listed, counted as fully exposed

    @classmethod
    def of(cls, rate: float, multiplier: float, adjacency: str, *, hidden_size: bool = False) -> "Round":
        """A round with one stratum: fixed-size sampling, or Poisson sampling with hidden_size."""
        return cls(((Stratum(1.0, rate, multiplier),),), adjacency, hidden_size)

    @property
    def strata(self) -> list[Stratum]:
        return [stratum for alternative in self.alternatives for stratum in alternative]

    @property
    def likeliest(self) -> Stratum:
        """The most probable stratum; of several, the one that the client is likelier to be in."""
        return max(self.strata, key=lambda stratum: (stratum.probability, stratum.rate))

    def mu(self, stratum: Stratum) -> float:
        """The largest distance between two sums, in standard deviations of the noise."""
        by_one = (
            self.adjacency != "replace-one" if self.hidden_size else self.adjacency == "zero-out" and stratum.rate == 1
        )
        return (1.0 if by_one else 2.0) / stratum.multiplier


def drawn_round(
    trials: int, probability: float, kind: Callable[[int], tuple[float, float] | None], adjacency: str
) -> Round:
    """Rounds of many kinds: for m ~ Bin(n, p), seen by all, kind(m) is (q, z), or None where nothing is released.

    A Poisson cohort whose size m shows is, given m, a fixed-size one: m of n without replacement (D4).
    """
    smallest, largest = (int(stats.binom.ppf(p, trials, probability)) for p in (1e-15, 1 - 1e-15))
    kinds = {m: kind(m) for m in range(smallest, largest + 1)}
    strata = (Stratum(float(stats.binom.pmf(m, trials, probability)), *found) for m, found in kinds.items() if found)
    left_out = stats.binom.sf(largest, trials, probability) + stats.binom.cdf(smallest - 1, trials, probability)
    return Round((tuple(strata),), adjacency, left_out=float(left_out))


def memberships_show(average: Round) -> bool:
    """Whether there is so little noise that memberships show anyway, and a PLD would need a vast grid."""
    return average.mu(average.likeliest) > LARGEST_MU


Averages: TypeAlias = tuple[tuple[Round, int], ...]
"""Kinds of released averages, and how many rounds there were of each."""


@lru_cache(maxsize=512)
def averages_epsilon(averages: Averages, delta: float) -> float:
    """The epsilon of the averages of all rounds."""
    averages = tuple((average, rounds) for average, rounds in averages if rounds > 0)
    if not averages:
        return 0.0
    if any(memberships_show(average) for average, _ in averages):
        return known_membership_epsilon(averages, delta)
    total = sum(rounds for _, rounds in averages)
    step = max(_grid_step(average, total) for average, _ in averages)
    parts = [_compose(_round_pld(average, step), rounds, step) for average, rounds in averages]
    return _epsilon(reduce(lambda all_before, part: all_before.compose(part), parts), delta)


def known_membership_epsilon(averages: Averages, delta: float, cap: int | None = None) -> float:
    """An upper bound in closed form: all memberships known, in all rounds the least noise of any (D2).

    cap: rounds in which a client takes part with anything of its own, at most.
    """
    strata = [(average, stratum) for average, _ in averages for stratum in average.strata]
    rounds = sum(number for _, number in averages)
    mu = max(average.mu(stratum) for average, stratum in strata)
    adjacency = averages[0][0].adjacency
    if adjacency == "add-remove":  # a client that is gone has no memberships to know
        return gaussian_epsilon(mu * math.sqrt(rounds), delta)
    if adjacency == "zero-out":
        mu = 1.0 / min(stratum.multiplier for _, stratum in strata)
    rate = max(
        sum(s.probability * s.rate for s in alternative) + average.left_out
        for average, _ in averages
        for alternative in average.alternatives
    )
    return drawn_gaussian_epsilon(mu, min(rate, 1.0), rounds, delta, cap)


@lru_cache(maxsize=512)
def personalised_epsilon(
    average: Round, after: Round, rate: float, upload_mu: float, rounds: int, smoothings: int, delta: float
) -> float:
    """The epsilon of FedCEO with personal restarts, which smooths in S of T rounds (D8).

    Writing A for the PLD of an average, U of a seen upload, R of the round after with the client in it, 0 for no loss:

        A^(T - 2S)  composed with  [(1-q) A + q U ((1-q) 0 + q R)]^S

    where (1-q) 0 + q R takes the place of the bracket's first A unless the number of memberships is hidden.
    """
    if memberships_show(average):
        return drawn_gaussian_epsilon(upload_mu, rate, rounds, delta)  # all of it is computed from uploads
    upload = Round.of(1.0, 1.0 / upload_mu, "zero-out", hidden_size=True)
    step = max(_grid_step(average, rounds), _largest_loss(upload) / LARGEST_GRID)
    nothing = _compose(None, 0, step)
    seen = _round_pld(upload, step)
    if smoothings == rounds:
        return _epsilon(_compose(_mix(seen, nothing, rate), rounds, step), delta)
    ordinary = _round_pld(average, step)
    known = _mix(_round_pld(after, step), nothing, rate)
    blocks = _compose(_mix(seen.compose(known), ordinary if average.hidden_size else known, rate), smoothings, step)
    return _epsilon(blocks.compose(_compose(ordinary, max(rounds - 2 * smoothings, 0), step)), delta)


def _epsilon(pld: PLD, delta: float) -> float:
    with np.errstate(over="ignore"):
        epsilon = float(pld.get_epsilon_for_delta(delta))
    if epsilon < LARGEST_LOSS:
        return epsilon
    # dp-accounting gives up where e^epsilon is no number any more
    largest = LARGEST_LOSS
    while pld.get_delta_for_epsilon(largest) > delta:
        largest *= 2
        if not math.isfinite(largest):
            return math.inf
    return float(optimize.brentq(lambda e: pld.get_delta_for_epsilon(e) - delta, 0.0, largest, rtol=1e-6))


def _mix(first: PLD, second: PLD, probability: float) -> PLD:
    return first.compute_mixture(second, probability)


def _compose(pld: PLD, times: int, step: float) -> PLD:
    from dp_accounting.pld import privacy_loss_distribution

    if not times:
        return privacy_loss_distribution.identity(step)
    with np.errstate(over="ignore"):  # a moment that is too large for a float bounds nothing, and is passed over there
        return pld.self_compose(times)


def _grid_step(average: Round, rounds: int) -> float:
    """Width of the privacy-loss grid that keeps the error of the composed epsilon near ACCURACY (D11)."""
    mu, rate = average.mu(average.likeliest), average.likeliest.rate
    spread = math.sqrt(rounds) * min(mu, rate * math.sqrt(math.expm1(min(mu**2, 100.0))))
    epsilon = spread**2 / 2 + 4.3 * spread  # 4.3 standard deviations: delta = 1e-5
    step = math.sqrt(12 * ACCURACY * epsilon / (rounds * (1 + 4.3 / spread)))
    return max(min(max(step, FINEST_STEP), COARSEST_STEP), _largest_loss(average) / LARGEST_GRID)


def _largest_loss(average: Round) -> float:
    """The loss of one round beyond which a mass of less than 1e-22 lies."""

    def loss(stratum: Stratum) -> float:
        mu = average.mu(stratum)
        unsampled = mu**2 / 2 + TAIL * mu
        return unsampled + math.log(stratum.rate + (1 - stratum.rate) * math.exp(-unsampled))

    return max(loss(stratum) for stratum in average.strata)


@lru_cache(maxsize=32)
def _round_pld(average: Round, step: float) -> PLD:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    if not average.hidden_size:
        return _without_replacement(average, step)
    ((_, rate, multiplier),) = average.strata
    replaces = average.adjacency == "replace-one"
    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=multiplier,
        sampling_prob=rate,
        value_discretization_interval=step,
        neighboring_relation=NeighboringRelation.REPLACE_ONE if replaces else NeighboringRelation.REPLACE_SPECIAL,
    )


def _without_replacement(average: Round, step: float) -> PLD:
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    size = math.ceil(min(_largest_loss(average), LARGEST_LOSS) / step)
    epsilons: Floats = step * np.arange(size + 1, dtype=np.float64)
    forward, reverse = _worst_profiles(average, epsilons)

    def pmf(profile: Floats, opposite: Floats) -> PLD:
        # the other direction has H_eps(P, Q) at a negative epsilon: 1 - e^eps + e^eps H_-eps(Q, P)
        negative = -np.expm1(-epsilons) + np.exp(-epsilons) * opposite
        bound = np.clip(np.concatenate([negative[:0:-1], profile]), 0.0, 1.0)
        deltas = _convex_envelope(np.exp(step * np.arange(-size, size + 1)), np.minimum.accumulate(bound))
        return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, -size, size, deltas)

    return privacy_loss_distribution.PrivacyLossDistribution(pmf(forward, reverse), pmf(reverse, forward))


def _convex_envelope(x: Floats, y: Floats) -> Floats:
    """The largest convex function below the points, which bounds a profile that they bound (D3)."""
    xs, ys = x.tolist(), y.tolist()
    kept: list[int] = []
    for k in range(len(xs)):
        while len(kept) > 1:
            i, j = kept[-2], kept[-1]
            if (ys[j] - ys[i]) * (xs[k] - xs[i]) < (ys[k] - ys[i]) * (xs[j] - xs[i]):
                break
            kept.pop()
        kept.append(k)
    return np.interp(x, x[kept], y[kept])


def _worst_profiles(average: Round, epsilons: Floats) -> tuple[Floats, Floats]:
    """Upper bounds of delta(epsilon >= 0) of one round, forwards and in reverse."""
    worst = np.zeros((2, epsilons.size))
    for alternative in average.alternatives:
        mixture = sum(s.probability * _profiles(s.rate, s.multiplier, average.adjacency, epsilons) for s in alternative)
        worst = np.maximum(worst, mixture + average.left_out)
    return worst[0], worst[1]


def _profiles(rate: float, multiplier: float, adjacency: str, epsilons: Floats) -> Floats:
    """Both directions of one stratum, stacked: H_eps <= q [(1-b) H_e(in, out) + b H_e(in, changed)] with
    e = ln(1 + (e^eps - 1) / q) and b = e^(eps - e) (D3)."""
    inner = epsilons - math.log(rate) + np.log1p(-(1.0 - rate) * np.exp(-epsilons))
    changed_weight = np.exp(epsilons - inner)
    near = gaussian_delta(1.0 / multiplier, inner)
    far = gaussian_delta(2.0 / multiplier, inner)
    if adjacency == "replace-one":
        return rate * np.stack([far, far])
    if adjacency == "add-remove":
        return np.stack([rate * far, _never_in(rate, 2.0 / multiplier, epsilons)])
    return rate * np.stack([(1.0 - changed_weight) * far + changed_weight * near, near])


def _never_in(rate: float, mu: float, epsilons: Floats) -> Floats:
    """H_eps(Q, P) of Q = N(0, 1) and P = (1-q) N(0, 1) + q N(mu, 1): a client that is gone was never in (D3)."""
    rest = np.maximum(-np.expm1(epsilons + math.log1p(-rate)), 0.0) if rate < 1 else np.ones_like(epsilons)
    possible = rest > 0  # beyond ln(1/(1-q)) the ratio of Q to P never gets
    profile = np.zeros_like(epsilons)
    inner = epsilons[possible] + math.log(rate) - np.log(rest[possible])
    profile[possible] = rest[possible] * gaussian_delta(mu, inner)
    return profile

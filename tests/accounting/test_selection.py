"""The epsilon of a study: against a second evaluation of the theorem, another library, and attacks on a toy."""

import logging
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from fedceo.accounting.plan import Plan
from fedceo.accounting.renyi import ORDERS, epsilon_at, gaussian_curve, round_curve
from fedceo.accounting.rounds import Round
from fedceo.accounting.selection import Score, composed_epsilon, selected_epsilon, study_rows
from fedceo.accounting.trials import Trials
from fedceo.errors import UsageError

# A second, naive evaluation: plain loops over its own orders, moments of sampled Gaussians by binomial sums


def naive_moments(rate: float, noise: float, rounds: int) -> Callable[[int], float]:
    """The divergence at a whole order (Mironov et al. 2019), the direction that is the larger one there."""

    def divergence(order: int) -> float:
        terms = [
            math.log(math.comb(order, k)) + (order - k) * math.log1p(-rate) + k * math.log(rate)
            + k * (k - 1) / (2 * noise**2)
            for k in range(order + 1)
        ] if rate < 1 else [order * (order - 1) / (2 * noise**2)]  # fmt: skip
        largest = max(terms)
        return rounds * (largest + math.log(math.fsum(math.exp(t - largest) for t in terms))) / (order - 1)

    return divergence


def naive_epsilon(rate: float, noise: float, rounds: int, law: Trials, delta: float) -> float:
    orders = range(2, 161)
    of_one = naive_moments(rate, noise, rounds)
    one = {order: of_one(order) for order in orders}
    if law.law == "poisson":

        def delta_of_one(eps: float) -> float:
            exponents = [(a - 1) * (one[a] - eps) + a * math.log(1 - 1 / a) - math.log(a - 1) for a in orders]
            return min(math.exp(min(exponents)), 1.0)

        best = {
            a: math.log(
                math.exp(-law.mean)
                + law.mean * math.exp((a - 1) * (one[a] + law.mean * delta_of_one(math.log(a / (a - 1)))))
            ) / (a - 1)
            for a in orders
            if (a - 1) * one[a] + law.mean < 600
        }  # fmt: skip
    else:
        eta = 1.0 if law.shape is None else law.shape
        gamma = naive_gamma(eta, law.mean)
        extra = min((1 + eta) * ((1 - 1 / a) * one[a] + math.log(1 / gamma) / a) for a in orders)
        best = {a: one[a] + extra + math.log(law.mean) / (a - 1) for a in orders}
    return min(r + math.log(1 - 1 / a) - math.log(delta * a) / (a - 1) for a, r in best.items())


def naive_gamma(eta: float, mean: float) -> float:
    low, high = 1e-12, 1 - 1e-12
    for _ in range(200):
        middle = math.sqrt(low * high)
        if eta == 0:
            found = (1 - middle) / (middle * math.log(1 / middle))
        else:
            found = eta * (1 - middle) / (middle * (1 - middle**eta))
        low, high = (middle, high) if found > mean else (low, middle)
    return low


SETTINGS = [
    (0.1, 2.25, 100, Trials("geometric", 12)),
    (0.1, 4.0, 100, Trials("geometric", 30)),
    (0.1, 8.0, 100, Trials("poisson", 12)),
    (0.02, 2.0, 200, Trials("poisson", 5)),
    (0.1, 2.25, 100, Trials("negative-binomial", 12, 0.0)),
    (0.1, 2.25, 100, Trials("negative-binomial", 12, 0.5)),
    (0.05, 2.0, 300, Trials("negative-binomial", 40, 3.0)),
    (1.0, 20.0, 10, Trials("geometric", 12)),
    (1.0, 30.0, 20, Trials("negative-binomial", 20, -0.5)),
    (1.0, 40.0, 10, Trials("poisson", 20)),
]


@pytest.mark.parametrize(("rate", "noise", "rounds", "law"), SETTINGS)
def test_epsilon_is_that_of_a_second_evaluation(rate: float, noise: float, rounds: int, law: Trials) -> None:
    curve = rounds * round_curve(Round.of(rate, noise, "zero-out", hidden_size=True))
    found, expected = selected_epsilon(curve, law, 1e-5), naive_epsilon(rate, noise, rounds, law, 1e-5)
    assert found == pytest.approx(expected, rel=0.01)
    assert found > epsilon_at(curve, 1e-5)


@pytest.mark.parametrize(("law", "shape"), [("geometric", 1.0), ("poisson", math.inf), ("negative-binomial", 0.5)])
def test_dp_accounting_agrees(law: str, shape: float) -> None:
    logging.disable(logging.WARNING)  # it warns of every order that it leaves out
    rate, noise, rounds, mean = 0.1, 4.0, 100, 12
    accountant = RdpAccountant(list(ORDERS[70:]))
    run = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    accountant.compose(dp_event.RepeatAndSelectDpEvent(dp_event.SelfComposedDpEvent(run, rounds), mean, shape))
    logging.disable(logging.NOTSET)
    curve = rounds * round_curve(Round.of(rate, noise, "zero-out", hidden_size=True))
    trials = Trials(law, mean, 0.5 if law == "negative-binomial" else None)
    assert selected_epsilon(curve, trials, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=0.002)


# A toy: a trial is one normal number around 0 or mu, and its score is the number itself


def exact_delta(mu: float, law: Trials, epsilon: float) -> float:
    """delta of the best of K normal numbers, by integrating its density f'(cdf) pdf, f the generating function."""
    x = np.linspace(-12, 14, 8001)
    slopes = law.probabilities[1:] * np.arange(1, len(law.probabilities))

    def density(mean: float) -> np.ndarray:
        return np.polynomial.polynomial.polyval(stats.norm.cdf(x - mean), slopes) * stats.norm.pdf(x - mean)

    step = x[1] - x[0]
    return max(
        float(np.sum(np.maximum(density(a) - math.exp(epsilon) * density(b), 0.0)) * step)
        for a, b in ((mu, 0.0), (0.0, mu))
    )


TOYS = [Trials("geometric", 12), Trials("poisson", 6), Trials("negative-binomial", 8, 0.0)]


@pytest.mark.parametrize("law", TOYS, ids=lambda law: law.law)
@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_the_toy_costs_no_more_than_is_said(law: Trials, mu: float) -> None:
    for delta in (1e-2, 1e-4):
        claimed = selected_epsilon(gaussian_curve(mu), law, delta)
        assert exact_delta(mu, law, claimed) <= delta


NOTHING = -50.0
"""What is released where no trial was drawn."""


def attacked_epsilon(one: np.ndarray, other: np.ndarray, delta: float) -> float:
    """A lower bound of epsilon at 99 %: the best threshold of one half of the draws, certified on the other half."""

    def bound(ours: np.ndarray, theirs: np.ndarray, certify: bool) -> tuple[float, float]:
        best = (-math.inf, math.nan)
        thresholds = np.quantile(theirs, 1 - np.geomspace(1e-3, 0.5, 60)) if not certify else [certified_at]
        for t in thresholds:
            hits, false = int((ours > t).sum()), int((theirs > t).sum())
            low = stats.beta.ppf(0.005, hits, len(ours) - hits + 1) if hits else 0.0
            high = stats.beta.ppf(0.995, false + 1, len(theirs) - false)
            best = max(best, (math.log(max(low - delta, 1e-12) / high), float(t)))
        return best

    half = len(one) // 2
    certified_at = bound(one[:half], other[:half], certify=False)[1]
    return bound(one[half:], other[half:], certify=True)[0]


def best_of(law: Trials, mean: float, rng: np.random.Generator, repetitions: int) -> np.ndarray:
    """The best of K draws: the largest of K uniforms is U^(1/K)."""
    counts = rng.choice(len(law.probabilities), size=repetitions, p=law.probabilities / law.probabilities.sum())
    uniform = rng.random(repetitions) ** (1 / np.maximum(counts, 1))
    return np.where(counts > 0, stats.norm.ppf(uniform) + mean, NOTHING)


@pytest.mark.parametrize("law", TOYS, ids=lambda law: law.law)
def test_an_attack_on_the_toy_stays_below(law: Trials) -> None:
    mu, delta, repetitions = 1.0, 1e-3, 100_000
    rng = np.random.default_rng(1)
    with_client, without = (best_of(law, mean, rng, repetitions) for mean in (mu, 0.0))
    attacks = (attacked_epsilon(with_client, without, delta), attacked_epsilon(-without, -with_client, delta))
    assert 0.5 < max(attacks) <= selected_epsilon(gaussian_curve(mu), law, delta)


def test_the_attack_refutes_whoever_does_not_count_the_choice() -> None:
    # the lowest of many draws: a release that favours what is rare shows far more than one draw does
    law, mu, delta = Trials("geometric", 50), 0.5, 1e-2
    rng = np.random.default_rng(2)
    with_client, without = (best_of(law, mean, rng, 100_000) for mean in (mu, 0.0))
    found = max(attacked_epsilon(with_client, without, delta), attacked_epsilon(-without, -with_client, delta))
    from fedceo.accounting.gaussian import gaussian_epsilon

    assert gaussian_epsilon(mu, delta) < found <= selected_epsilon(gaussian_curve(mu), law, delta)


# Laws


@pytest.mark.parametrize(
    "law", [*TOYS, Trials("negative-binomial", 40, 3.0), Trials("negative-binomial", 9, -0.5), Trials("geometric", 1)]
)
def test_laws_have_their_mean_and_their_generating_function(law: Trials) -> None:
    p = law.probabilities
    counts = np.arange(len(p))
    assert p.sum() == pytest.approx(1, abs=1e-12) and p @ counts == pytest.approx(law.mean, rel=1e-9)
    if law.law != "poisson" and law.mean > 1:
        x, gamma, eta = 0.7, law.gamma, law.eta
        if eta == 0:
            expected = math.log(1 - (1 - gamma) * x) / math.log(gamma)
        else:
            expected = ((1 - (1 - gamma) * x) ** -eta - 1) / (gamma**-eta - 1)
        assert float(np.polynomial.polynomial.polyval(x, p)) == pytest.approx(expected, rel=1e-9)


def test_draws_follow_their_law() -> None:
    for law in (Trials("geometric", 3), Trials("poisson", 2), Trials("negative-binomial", 3, 0.0)):
        drawn = Counter(law.draw() for _ in range(4000))
        kept = [k for k in range(len(law.probabilities)) if 4000 * law.probabilities[k] > 8]
        seen = [drawn[k] for k in kept] + [4000 - sum(drawn[k] for k in kept)]
        expected = [4000 * law.probabilities[k] for k in kept]
        expected.append(4000 - sum(expected))
        assert stats.chisquare(seen, expected).pvalue > 1e-7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("uniform", 12, None), "--law: 'uniform'"),
        (("geometric", 12, 0.5), "--shape: belongs to"),
        (("negative-binomial", 12, None), "--shape: belongs to"),
        (("negative-binomial", 12, -1.0), "--shape: -1.0, expected above -1"),
        (("geometric", 5000, None), "--trials: 5000, expected a mean"),
        (("negative-binomial", 1000, -0.9), "expected more equal numbers"),
    ],
)
def test_laws_that_cannot_be_are_refused(arguments: tuple[str, float, float | None], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Trials(*arguments)


# Whoever sees all trials


def test_all_trials_add_up_over_their_number() -> None:
    from fedceo.accounting.gaussian import gaussian_delta

    mu, law, delta = 0.5, Trials("geometric", 4), 1e-5
    found = composed_epsilon(gaussian_curve(mu), law, delta)
    counts = np.arange(1, len(law.probabilities))
    exact = float(law.probabilities[1:] @ gaussian_delta(mu * np.sqrt(counts), found))
    assert exact <= delta
    near = float(law.probabilities[1:] @ gaussian_delta(mu * np.sqrt(counts), 0.85 * found))
    assert near > delta
    assert composed_epsilon(gaussian_curve(mu), law, delta, further=2) > found


def test_one_trial_costs_what_a_run_costs() -> None:
    curve = gaussian_curve(0.5)
    for found in (
        selected_epsilon(curve, Trials("geometric", 1), 1e-5),
        composed_epsilon(curve, Trials("geometric", 1), 1e-5),
    ):
        assert found == pytest.approx(epsilon_at(curve, 1e-5), rel=1e-3)


def test_rows_of_a_study() -> None:
    base: dict[str, Any] = {"clients": 1000, "cohort": 100, "rounds": 100, "noise_multiplier": 4.0, "delta": 1e-5}
    plan, law = Plan(**base, mechanism="distributed"), Trials("geometric", 12)
    public = {row.observer: row for row in study_rows([plan], law, Score())}
    noised = {row.observer: row for row in study_rows([plan], law, Score(0.1))}
    assert list(public) == ["outsider", "participant", "server"]
    for observer in ("outsider", "participant"):
        run, study, protected = (public[observer].epsilon_run, public[observer].epsilon, noised[observer].epsilon)
        assert run is not None and study is not None and protected is not None
        assert run < study < protected
    outsider, participant = public["outsider"].epsilon, public["participant"].epsilon
    assert outsider is not None and participant is not None and participant > 1.5 * outsider
    assert noised["server"].epsilon is None and "adds the noise of the scores itself" in noised["server"].assumption
    trusted = study_rows([Plan(**base, mechanism="central")], law, Score())
    assert trusted[2].epsilon is None and "must be trusted" in trusted[2].assumption
    noisier = Plan(**base | {"noise_multiplier": 8.0}, mechanism="distributed")
    assert study_rows([noisier, plan], law, Score())[0].epsilon == outsider, "the costliest settings count"

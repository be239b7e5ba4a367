"""Renyi divergences of single rounds and of whole views, against other ways to the same numbers."""

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from scipy import integrate

from fedceo.accounting.plan import Plan, RecordSteps
from fedceo.accounting.profiles import profile
from fedceo.accounting.renyi import (
    ORDERS,
    drawn_gaussians_curve,
    epsilon_at,
    gaussian_curve,
    round_curve,
)
from fedceo.accounting.rounds import Round
from fedceo.accounting.rows import account, answer, divergence

SOME = (3, 60, 90, 105)
"""Places of ORDERS at which a slow computation is affordable: 1.01, 1.6, 6.5, 15."""


@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.0), (0.01, 0.6), (1e-4, 50.0), (0.5, 3.0)])
def test_a_poisson_round_has_the_moments_of_its_densities(rate: float, noise: float) -> None:
    found = round_curve(Round.of(rate, noise, "zero-out", hidden_size=True))
    with mp.workdps(40):
        q, mu = mp.mpf(rate), 1 / mp.mpf(noise)
        places = [-40, -10, -3, 0, 3, 10, 20, 40]
        for index in SOME:
            order = mp.mpf(float(ORDERS[index]))
            moments = [
                mp.quad(lambda x, p=p: mp.npdf(x) * (1 - q + q * mp.exp(mu * x - mu**2 / 2)) ** p, places)
                for p in (order, 1 - order)
            ]
            expected = max(mp.log(moment) / (order - 1) for moment in moments)
            assert float(found[index] / expected - 1) == pytest.approx(5e-10, abs=1e-9)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one", "add-remove"])
@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize(("rate", "noise"), [(0.1, 2.0), (0.3, 1.0)])
def test_divergences_follow_from_the_profiles(adjacency: str, hidden: bool, rate: float, noise: float) -> None:
    average = Round.of(rate, noise, adjacency, hidden_size=hidden)
    found = round_curve(average)

    def moment(order: float, reverse: bool) -> float:
        """E[(P/Q)^alpha] as an integral of hockey-stick divergences at e^eps."""

        eps = np.concatenate([np.linspace(0, 2, 20_001)[:-1], np.linspace(2, 60 / noise, 20_001)])
        above, below = (profile(average, eps, reverse=way) for way in (reverse, not reverse))
        integral = integrate.simpson(np.exp((order - 1) * eps) * above + np.exp(-order * eps) * below, x=eps)
        return 1 + order * (order - 1) * float(integral)

    for index in SOME[:-1]:
        order = float(ORDERS[index])
        expected = max(math.log(moment(order, reverse)) for reverse in (False, True)) / (order - 1)
        assert found[index] == pytest.approx(expected, rel=2e-5)


def test_a_whole_cohort_is_the_gaussian_mechanism() -> None:
    found = round_curve(Round.of(1.0, 2.0, "zero-out", hidden_size=True))
    known = np.isfinite(found)
    assert known.sum() > 100
    np.testing.assert_allclose(found[known], ORDERS[known] / 8, rtol=1e-8)


def test_more_noise_and_smaller_rates_cost_less() -> None:
    base = round_curve(Round.of(0.1, 1.0, "zero-out"))
    for less in (Round.of(0.1, 1.1, "zero-out"), Round.of(0.09, 1.0, "zero-out")):
        assert np.all(round_curve(less)[:120] < base[:120])


def test_a_cap_on_draws_is_a_sum_over_their_number() -> None:
    mu, rate, rounds, cap = 0.3, 0.2, 30, 7
    found = drawn_gaussians_curve((mu, rounds), (0.0, 0), rate, cap)
    for index in SOME:
        order = float(ORDERS[index])
        moment = sum(
            math.comb(rounds, m) * rate**m * (1 - rate) ** (rounds - m)
            * math.exp(order * (order - 1) * min(m, cap) * mu**2 / 2)
            for m in range(rounds + 1)
        )  # fmt: skip
        assert found[index] == pytest.approx(math.log(moment) / (order - 1), rel=1e-9)
    uncapped = drawn_gaussians_curve((mu, rounds), (0.0, 0), rate)
    assert np.all(found <= uncapped) and found[100] < 0.9 * uncapped[100]


def test_the_gaussian_epsilon_is_near_and_never_below() -> None:
    from fedceo.accounting.gaussian import gaussian_epsilon

    for mu, delta in [(0.1, 1e-5), (1.0, 1e-5), (5.0, 1e-10), (30.0, 1e-3)]:
        exact = gaussian_epsilon(mu, delta)
        assert exact <= epsilon_at(gaussian_curve(mu), delta) <= 1.15 * exact


PLANS: dict[str, dict[str, Any]] = {
    "fixed": {"mechanism": "central"},
    "poisson": {"mechanism": "central", "sampling": "poisson"},
    "shares": {"mechanism": "distributed"},
    "replace-one": {"mechanism": "distributed", "adjacency": "replace-one"},
    "poisson shares": {"mechanism": "distributed", "sampling": "poisson"},
    "add-remove": {"mechanism": "central", "adjacency": "add-remove"},
    "capped": {"mechanism": "distributed", "participation_cap": 20},
    "harmless cap": {"mechanism": "central", "sampling": "poisson", "participation_cap": 20},
    "everyone": {"mechanism": "distributed", "cohort": 60, "rounds": 20},
    "own": {"mechanism": "distributed", "release": "personalised", "interval": 10},
    "own, capped": {"mechanism": "distributed", "release": "personalised", "interval": 10, "participation_cap": 20},
    "own, everyone": {"mechanism": "distributed", "release": "personalised", "interval": 4, "cohort": 60, "rounds": 20},
    "record, everyone": {
        "mechanism": "record", "cohort": 60, "rounds": 5,
        "record_steps": (RecordSteps(1 / 7, 21), RecordSteps(1 / 2, 6)),
    },
    "stored": {"mechanism": "distributed", "release": "stored"},
    "nothing": {"mechanism": "none"},
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_every_view_has_divergences_like_its_epsilon(name: str) -> None:
    base: dict[str, Any] = {"clients": 60, "cohort": 6, "rounds": 100, "noise_multiplier": 2.0, "delta": 1e-5}
    plan = Plan(**base | PLANS[name])
    for observer in dict.fromkeys(row.observer for row in account(plan) if row.observer in ("outsider", "server")):
        found, exact = divergence(plan, observer), answer(plan, observer).epsilon
        assert (found is None) == (exact is None), observer
        if found is not None and exact is not None:
            assert exact * (1 - 1e-6) <= epsilon_at(found, plan.delta) <= 1.25 * exact, observer


def test_records_are_counted_over_the_draw_of_cohorts() -> None:
    steps = (RecordSteps(1 / 7, 21),)
    plan = Plan(60, 6, 100, 2.0, 1e-5, "record", record_steps=steps)
    found = divergence(plan, "server")
    assert found is not None
    one = 21 * round_curve(Round.of(1 / 7, 2.0, "zero-out", hidden_size=True))
    for index in SOME:
        theta = ORDERS[index] - 1
        expected = 100 * math.log(0.9 + 0.1 * math.exp(theta * one[index])) / theta
        assert found[index] == pytest.approx(expected, rel=1e-9)

"""The canaries and the statistics of their scores: bounds on error rates, bounds on mu, what is planted."""

import numpy as np
import pytest
import torch
from scipy import stats

from fedceo.audit.canaries import Canaries, Samples, mu_from_errors, rate_upper, sure_bound


@pytest.mark.parametrize("trials", [1, 7, 400])
@pytest.mark.parametrize("alpha", [0.05, 1e-6])
def test_rates_are_bounded_as_by_clopper_and_pearson(trials: int, alpha: float) -> None:
    for errors in {0, 1, trials // 2, trials}:
        bound = rate_upper(np.array([errors]), trials, alpha)[0]
        exact = stats.binomtest(errors, trials, alternative="less").proportion_ci(1 - alpha, "exact").high
        assert bound == pytest.approx(exact, rel=1e-6)


def test_the_bound_falls_with_errors_and_rises_with_scores() -> None:
    errors = np.arange(0, 400)
    bounds = mu_from_errors(errors, 1000, np.full(400, 100), 1000, 0.01)
    assert (np.diff(bounds) < 0).all()
    assert (np.diff([sure_bound(1.0, n, 0.01) for n in (100, 400, 1600, 10_000)]) > 0).all()
    assert sure_bound(1.0, 10**8, 0.01) == pytest.approx(1.0, abs=0.01)


def test_the_bound_of_gaussians_is_below_but_near_their_distance() -> None:
    rng = np.random.default_rng(0)
    for mu in (0.5, 1.0, 2.0, 3.0):
        bound = Samples(rng.normal(size=20_000), rng.normal(size=20_000) + mu).mu_bound(0.01)
        assert 0.85 * mu < bound < mu


def test_worlds_without_overlap_reach_the_ceiling() -> None:
    rng = np.random.default_rng(0)
    apart = Samples(1e-9 * rng.normal(size=3000), 1 + 1e-9 * rng.normal(size=3000)).mu_bound(0.05)
    assert apart == pytest.approx(2 * stats.norm.ppf(0.025 ** (1 / 1500)), rel=1e-9)
    assert Samples(np.zeros(100), np.zeros(100)).mu_bound(0.05) == 0.0


def test_canaries_are_orthonormal_and_clip_to_their_share() -> None:
    canaries = Canaries([80, 20, 3], 10, np.random.default_rng(0))
    coins = np.arange(10) % 2 == 0
    for share in (1.0, 0.3):
        sent = canaries.updates(coins, share, 2.0, torch.empty(0, dtype=torch.float64))
        clipped = sent * (2.0 / sent.norm(dim=1, keepdim=True).clamp_min(2.0))
        assert np.allclose(canaries.own(clipped), 2.0 * share * coins)
        assert np.allclose(canaries.peers(clipped), 0.0)
        assert np.allclose(canaries.common(clipped.sum(0)), 2.0 * share * coins)
    everywhere = canaries.updates(np.ones(10, dtype=bool), 0.3, 1.0, torch.empty(0)).abs().sum(0)
    assert torch.count_nonzero(everywhere) == 103

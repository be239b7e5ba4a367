"""The formulas of docs/collaboration.md, against FedCEO's filter and against sampling."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import norm

from fedceo.mechanisms.uploads import Stack
from fedceo.methods.base import State
from fedceo.methods.fedceo import FedCEO, FedCEOSettings

CLIENTS, ENTRIES = 12, 40_000


def error(alpha: float, spread: float, noise: float) -> float:
    return noise**2 / CLIENTS + (1 - 1 / CLIENTS) * ((1 - alpha) ** 2 * spread**2 + alpha**2 * noise**2)


@pytest.mark.parametrize("spread, noise", [(1.0, 0.5), (0.7, 1.4)])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_error_of_the_filter_is_the_one_derived(alpha: float, spread: float, noise: float) -> None:
    torch.manual_seed(1)
    best = 3.0 + spread * torch.randn(CLIENTS, 200, ENTRIES // 200)
    uploads = Stack({"w": best + noise * torch.randn_like(best)}, tuple(range(CLIENTS)), torch.ones(CLIENTS), 0)
    method = FedCEO(FedCEOSettings(filter="damp", alpha=alpha, interval=1))
    state, _ = method.aggregate(State({}), uploads, 1)
    found = torch.stack([(state.personal[k]["w"] - best[k]).square().mean() for k in range(CLIENTS)]).mean()
    assert float(found) == pytest.approx(error(alpha, spread, noise), rel=0.02)


@given(spread=st.floats(0.05, 5.0), noise=st.floats(0.05, 5.0), alpha=st.floats(0.0, 1.0))
def test_who_beats_whom(spread: float, noise: float, alpha: float) -> None:
    best = spread**2 / (spread**2 + noise**2)
    assert error(best, spread, noise) <= error(alpha, spread, noise) + 1e-12
    alone, together, between = (error(each, spread, noise) for each in (1.0, 0.0, 0.5))
    assume(min(abs(alone - together), abs(alone - between), abs(together - between)) > 1e-9)
    assert (alone < together) == (noise < spread)
    assert (between < min(alone, together)) == (1 / 3 < (noise / spread) ** 2 < 3)


@given(seed=st.integers(0, 1000), noise=st.floats(0.1, 10.0))
def test_predictions_want_less_damping_than_weights(seed: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    features, deviations = (np.sort(rng.exponential(size=30) ** 2) for _ in range(2))
    weights = deviations.sum() / (deviations.sum() + noise**2 * 30)
    common = (features * deviations).sum()
    assert common / (common + noise**2 * features.sum()) >= weights - 1e-12


@given(
    mean=st.floats(0.1, 3.0), spread=st.floats(0.1, 3.0), shift=st.floats(0.1, 3.0), noise=st.floats(0.1, 3.0),
    other=st.floats(0.0, 5.0),
)  # fmt: skip
def test_accuracy_is_best_where_it_was_derived(
    mean: float, spread: float, shift: float, noise: float, other: float
) -> None:
    def right(alpha: float) -> float:
        return float(norm.cdf((mean + alpha * shift) / math.hypot(spread, alpha * noise)))

    best = shift * spread**2 / (mean * noise**2)
    assert right(best) >= right(other) - 1e-12
    least_squares = shift**2 / (shift**2 + noise**2)
    gap = spread**2 * (1 + shift**2 / noise**2) - mean * shift
    assume(abs(gap) > 1e-9)
    assert (best > least_squares) == (gap > 0)


def test_a_pull_at_rest_is_the_filter() -> None:
    """Gradient steps on h/2 (w - own)^2 + lambda/2 (w - mean)^2 end h / (h + lambda) of the way from mean to own."""
    curvature, pull, own, mean, w = 0.8, 0.5, 2.0, -1.0, 7.0
    for _ in range(500):
        w -= 0.3 * (curvature * (w - own) + pull * (w - mean))
    assert w == pytest.approx(mean + curvature / (curvature + pull) * (own - mean))

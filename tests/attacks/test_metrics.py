"""Metrics of reconstructions, against values known by hand."""

import pytest
import torch

from fedceo.attacks import metrics

TRUTH = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_psnr() -> None:
    assert metrics.psnr(TRUTH, TRUTH).tolist() == pytest.approx([100.0] * 3)
    half = torch.full((1, 1, 4, 4), 0.5)
    assert float(metrics.psnr(half + 0.1, half)) == pytest.approx(20.0, abs=1e-4)
    assert float(metrics.psnr(half + 7, half)) == pytest.approx(6.02, abs=0.01), "what is too bright is white"


def test_ssim() -> None:
    assert metrics.ssim(TRUTH, TRUTH).tolist() == pytest.approx([1.0] * 3)
    noise = torch.rand(TRUTH.shape, generator=torch.Generator().manual_seed(1))
    assert (metrics.ssim(noise, TRUTH) < 0.2).all()
    flat = torch.full((1, 1, 12, 12), 0.2)
    expected = (2 * 0.2 * 0.6 + 1e-4) / (0.2**2 + 0.6**2 + 1e-4)  # two even pictures differ in brightness alone
    assert float(metrics.ssim(flat, flat + 0.4)) == pytest.approx(expected, rel=1e-4)
    assert metrics.ssim(TRUTH[..., :5, :5], TRUTH[..., :5, :5]).tolist() == pytest.approx([1.0] * 3)


def test_the_constant_colour_is_the_best_one() -> None:
    best = metrics.mse(metrics.constant_colour(TRUTH), TRUTH)
    for shift in (-0.05, 0.05):
        assert (metrics.mse(metrics.constant_colour(TRUTH) + shift, TRUTH) > best).all()


def test_intervals() -> None:
    values = torch.randn(200, generator=torch.Generator().manual_seed(0)) + 10
    found = metrics.median(values)
    assert found.low is not None and found.high is not None
    assert found.low < found.value < found.high and found.low < 10 < found.high and found.high - found.low < 0.6
    assert metrics.median(torch.tensor([3.0])).low is None
    all_hit = metrics.proportion(torch.ones(32, dtype=torch.bool))
    assert all_hit.value == 1 and all_hit.low == pytest.approx(0.893, abs=0.001), "32 of 32 does not prove certainty"

"""Measures of a reconstruction: PSNR, SSIM, MSE and label hits, each with an interval over the pictures.

Pictures are (n, channels, height, width) with values from 0 to 1; reconstructions are clamped to that first.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

LEAST_ERROR = 1e-10
"""Smallest mean squared error that is told from zero: 100 dB."""
CONFIDENCE = 0.95
RESAMPLES = 2000
WINDOW = 11
"""Side of the Gaussian window of SSIM; smaller where the picture is smaller."""


@dataclass(frozen=True)
class Estimate:
    """An estimate over several pictures with its 95 % interval; a single picture has no interval."""

    value: float
    low: float | None = None
    high: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        return {"value": self.value, "low": self.low, "high": self.high}


def mse(found: Tensor, truth: Tensor) -> Tensor:
    """(n,) mean squared error."""
    return (found.clamp(0, 1) - truth).square().flatten(1).mean(1)


def psnr(found: Tensor, truth: Tensor) -> Tensor:
    """(n,) peak signal-to-noise ratio in dB, 10 log10(1 / MSE)."""
    return -10 * mse(found, truth).clamp_min(LEAST_ERROR).log10()


def ssim(found: Tensor, truth: Tensor) -> Tensor:
    """(n,) mean structural similarity (Wang et al. 2004), Gaussian window with a standard deviation of 1.5 pixels."""
    found = found.clamp(0, 1)
    side = min(WINDOW, *truth.shape[2:])
    offsets = torch.arange(side, dtype=truth.dtype, device=truth.device) - (side - 1) / 2
    bell = (-offsets.square() / (2 * 1.5**2)).exp()
    channels = truth.shape[1]
    window = (torch.outer(bell, bell) / bell.sum() ** 2).expand(channels, 1, side, side)

    def local(values: Tensor) -> Tensor:
        return F.conv2d(values, window, groups=channels)

    mean_f, mean_t = local(found), local(truth)
    var_f, var_t = local(found * found) - mean_f**2, local(truth * truth) - mean_t**2
    together = local(found * truth) - mean_f * mean_t
    steady, steadier = 0.01**2, 0.03**2
    index = ((2 * mean_f * mean_t + steady) * (2 * together + steadier)) / (
        (mean_f**2 + mean_t**2 + steady) * (var_f + var_t + steadier)
    )
    return index.flatten(1).mean(1)


def constant_colour(truth: Tensor) -> Tensor:
    """The best picture of a single colour, each channel's mean: an attack that does worse has found not even that."""
    return truth.mean((2, 3), keepdim=True).expand_as(truth)


def median(values: Tensor) -> Estimate:
    """The median over pictures, (n,), with a bootstrap interval."""
    drawn = values.double().cpu().numpy()
    if len(drawn) == 1:
        return Estimate(float(drawn[0]))
    rng = np.random.default_rng(0)
    medians = np.median(drawn[rng.integers(len(drawn), size=(RESAMPLES, len(drawn)))], axis=1)
    low, high = np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(float(np.median(drawn)), float(low), float(high))


def proportion(hits: Tensor) -> Estimate:
    """The proportion of hits among pictures, (n,) booleans, with Wilson's interval."""
    from scipy.stats import binomtest  # here, because it is slow to import

    count, total = int(hits.sum()), len(hits)
    if total == 1:
        return Estimate(float(count))
    interval = binomtest(count, total).proportion_ci(CONFIDENCE, method="wilson")
    return Estimate(count / total, float(interval.low), float(interval.high))

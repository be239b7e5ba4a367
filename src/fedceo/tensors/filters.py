"""The filter P of a Gram matrix, and bounds on its largest eigenvalue; fedceo.tensors.shrinkage says why P is needed.

There are two ways to P: `filter_by_eigh`, an eigendecomposition, is the fastest on a CPU; `filter_by_sign` needs only
matrix products, and a GPU multiplies a hundred times faster than it diagonalises.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedceo.tensors.checks import Floats

SQUARINGS = 3
"""Squarings of the Gram matrix, at most, to bound its largest eigenvalue; the bound is then too large by n^(1/16)."""


def filter_by_eigh(gram: Tensor, tau: Floats) -> Tensor:
    """The filter P of every Gram matrix, (B, n, n), from its eigendecomposition."""
    values, vectors = torch.linalg.eigh(gram)
    s = values.clamp_min(torch.finfo(values.dtype).tiny).sqrt().unsqueeze(1)
    keep = (1 - columns(s, tau)[0] / s).clamp_min(0)
    return (vectors * keep) @ vectors.mH


def filter_by_sign(gram: Tensor, tau: Floats, largest: Floats, tolerance: float | Floats) -> Tensor:
    """The filter P of every Gram matrix, (B, n, n), by matrix products alone.

    With Y = G / tau^2 - I and M = I + (Y + Y sign(Y)) / 2, whose eigenvalues are max(s^2 / tau^2, 1),

        P = I - M^(-1/2).

    sign(Y) and M^(-1/2) come from Newton-Schulz iterations, scaled at each step so that the interval that holds the
    eigenvalues contracts to 1 as fast as a cubic can make it (Chen and Chow 2014). An eigenvalue y so close to 0 that
    its sign is not resolved moves the singular value by only tau |y| / 4: the kink costs accuracy in no other way.

    Args:
        gram: (B, n, n), float64 or complex128.
        tau: (B,) thresholds.
        largest: (B,) upper bounds on the eigenvalues of gram.
        tolerance: error allowed in each singular value, one for all or (B,).
    """
    condition = np.maximum(largest / tau**2, 1.0)
    reach = np.maximum(condition - 1, 1.0)
    to_tau, to_reach, to_one = columns(gram, tau**-2, 1 / reach, 1 / condition)
    identity = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device).expand_as(gram)
    # no addcmul and no negation here: torch compiles those for complex numbers when first used, for seconds
    y = gram * to_tau - identity
    x = y * to_reach
    low = min(0.5, float((4 * tolerance / (tau * reach)).min()))
    while 1 - low > 1e-6:
        a = _scaling(low)
        x = torch.baddbmm(x, x, torch.bmm(x, x), beta=1.5 * a, alpha=-0.5 * a**3)
        low = _cubic(a, low)
    m = torch.baddbmm(y + 2 * identity, y, x)

    root, inverse = (m + m.mH) * (to_one / 4), identity
    low = float(condition.max()) ** -0.5
    while 1 - low > 1e-7:
        a = _scaling(low)
        low = _cubic(a, low)
        product = root if inverse is identity else torch.bmm(inverse, root)
        step = 1.5 * a * identity - 0.5 * a**3 * product
        inverse = step if inverse is identity else torch.bmm(step, inverse)
        root = torch.bmm(root, step)
    return identity - inverse * to_one.sqrt()


def _scaling(low: float) -> float:
    """The a for which the cubic below maps both ends of [low, 1] to the same value and stays within 1."""
    return math.sqrt(3 / (1 + low + low * low))


def _cubic(a: float, x: float) -> float:
    return a * x * (1.5 - 0.5 * (a * x) ** 2)


def bounds(gram: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Ever closer bounds from above and from below on the largest eigenvalue of each matrix, (B,).

    ||G^(2^k)|| bounds the 2^k-th power of that eigenvalue from above, the closer the larger k; the largest diagonal
    entry and ||G^2|| / ||G|| bound the eigenvalue from below.
    """
    norm = torch.linalg.vector_norm(gram, dim=(1, 2))
    upper = torch.minimum(norm, torch.linalg.vector_norm(gram, ord=1, dim=2).amax(1))
    lower = gram.diagonal(dim1=1, dim2=2).real.amax(1)
    yield upper, lower
    power = gram / norm.view(-1, 1, 1).clamp_min(torch.finfo(norm.dtype).tiny)
    for k in range(1, SQUARINGS + 1):
        power = torch.bmm(power, power)
        size = torch.linalg.vector_norm(power, dim=(1, 2))
        upper = torch.minimum(upper, norm * size ** (0.5**k))
        if k == 1:
            lower = torch.maximum(lower, norm * size)
        yield upper, lower


def columns(like: Tensor, *values: Floats) -> Tensor:
    """Several (B,) arrays as one tensor (len(values), B, 1, 1) on the device of `like`, in one transfer."""
    return torch.from_numpy(np.stack(values)).to(like.device, like.real.dtype).view(len(values), -1, 1, 1)

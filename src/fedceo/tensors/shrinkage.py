"""Singular-value soft-thresholding of a stack of matrices, the inner work of the truncated t-SVD.

For A with d >= n columns and Gram matrix G = A^H A = V diag(s^2) V^H,

    SVT(A, tau) = U max(S - tau, 0) V^H = A P,    P = V diag(max(1 - tau / s, 0)) V^H,

so the n x n filter P, a function of G alone, does the work of a d x n SVD. Two ways to P:

- `filter_by_eigh`, an eigendecomposition: the fastest on a CPU;
- `filter_by_sign`, matrix products only: a GPU multiplies a hundred times faster than it diagonalises.

Rounding errors in G and its decomposition move the result by a few eps ||A||_2^2 / tau. Each matrix is therefore taken
in the lowest precision for which that is small enough: that of the input, then float64, then an SVD without G.
"""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedceo.tensors.checks import Floats

TOLERANCE = {torch.float32: 3e-6, torch.float64: 3e-13}
"""Error allowed, relative to the whole tensor's norm: a third of what truncated_tsvd promises."""

SQUARINGS = 3
"""How often the Gram matrix is squared at most to bound its largest eigenvalue; the bound is then off by n^(1/16)."""


def shrink(matrices: Tensor, tau: Floats, total: float) -> Tensor:
    """SVT of each matrix of a stack at its own threshold.

    Args:
        matrices: (B, d, n), real or complex.
        tau: (B,), positive.
        total: Frobenius norm of everything these matrices are part of; accuracy is promised relative to it.
    """
    if matrices.shape[1] < matrices.shape[2]:
        return shrink(matrices.mH, tau, total).mH
    # Errors of n singular values add up to sqrt(n) times one of them.
    tolerance = TOLERANCE[matrices.real.dtype] * total / math.sqrt(matrices.shape[2])
    if matrices.is_cuda or matrices.real.dtype == torch.float64 or _prefers_products(matrices):
        return _shrink_in((torch.float64,), matrices, tau, tolerance)
    return _shrink_in((torch.float32, torch.float64), matrices, tau, tolerance)


def _shrink_in(precisions: tuple[torch.dtype, ...], matrices: Tensor, tau: Floats, tolerance: float) -> Tensor:
    """`shrink` with the Gram matrix in the first precision that meets the tolerance, by SVD when none does."""
    if not precisions:
        u, s, vh = torch.linalg.svd(matrices, full_matrices=False)
        kept = (s.unsqueeze(1) - _columns(s, tau)[0]).clamp_min(0)
        return (u * kept) @ vh

    precision, *higher = precisions
    gram = _gram(matrices, precision)
    by_products = _prefers_products(matrices)
    largest, is_zero = _largest_eigenvalue(gram, tau)
    is_fine = 2 * torch.finfo(precision).eps * largest / tau <= tolerance
    here, later = is_fine & ~is_zero, ~is_fine & ~is_zero
    if here.all():
        return matrices @ _filter(gram, tau, largest, tolerance, by_products).to(matrices.dtype)
    out = torch.zeros_like(matrices)
    if here.any():
        at = torch.from_numpy(here)
        keep = _filter(gram[at], tau[here], largest[here], tolerance, by_products)
        out[at] = matrices[at] @ keep.to(matrices.dtype)
    if later.any():
        at = torch.from_numpy(later)
        out[at] = _shrink_in(tuple(higher), matrices[at], tau[later], tolerance)
    return out


def _prefers_products(matrices: Tensor) -> bool:
    return matrices.is_cuda and matrices.real.dtype == torch.float32


def _filter(gram: Tensor, tau: Floats, largest: Floats, tolerance: float, by_products: bool) -> Tensor:
    return filter_by_sign(gram, tau, largest, tolerance) if by_products else filter_by_eigh(gram, tau)


def filter_by_eigh(gram: Tensor, tau: Floats) -> Tensor:
    """P of every Gram matrix, (B, n, n), from its eigendecomposition."""
    values, vectors = torch.linalg.eigh(gram)
    s = values.clamp_min(torch.finfo(values.dtype).tiny).sqrt().unsqueeze(1)
    keep = (1 - _columns(s, tau)[0] / s).clamp_min(0)
    return (vectors * keep) @ vectors.mH


def filter_by_sign(gram: Tensor, tau: Floats, largest: Floats, tolerance: float) -> Tensor:
    """P of every Gram matrix, (B, n, n), by matrix products alone.

    With Y = G / tau^2 - I and M = I + (Y + Y sign(Y)) / 2, whose eigenvalues are max(s^2 / tau^2, 1),

        P = I - M^(-1/2).

    sign(Y) and M^(-1/2) come from Newton-Schulz iterations, scaled at each step so that the interval that holds the
    eigenvalues contracts to 1 as fast as a cubic can make it (Chen and Chow 2014). An eigenvalue y so close to 0 that
    its sign is not resolved moves the singular value by only tau |y| / 4: the kink costs accuracy in no other way.

    Args:
        gram: (B, n, n), float64 or complex128.
        tau: (B,) thresholds.
        largest: (B,) upper bounds on the eigenvalues of gram.
        tolerance: error allowed in each singular value.
    """
    condition = np.maximum(largest / tau**2, 1.0)
    reach = np.maximum(condition - 1, 1.0)
    to_tau, to_reach, to_one = _columns(gram, tau**-2, 1 / reach, 1 / condition)
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


def _gram(matrices: Tensor, precision: torch.dtype) -> Tensor:
    """A^H A, for A = X + iY as (X'X + Y'Y) + i(X'Y - Y'X): six products' worth of work instead of eight."""
    if not matrices.is_complex():
        precise = matrices.to(precision)
        return precise.mT @ precise
    stacked = torch.cat([matrices.real, matrices.imag], dim=1).to(precision)
    x, y = stacked.chunk(2, dim=1)
    cross = x.mT @ y
    return torch.complex(stacked.mT @ stacked, cross - cross.mT)


def _largest_eigenvalue(gram: Tensor, tau: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """An upper bound on the largest eigenvalue of each matrix, and whether it proves that nothing exceeds tau^2.

    ||G^(2^k)|| bounds the 2^k-th power of that eigenvalue, the closer the larger k. A CPU squares only while neither
    this bound nor one from below (the largest diagonal entry, ||G^2|| / ||G||) has settled the question; on a GPU
    squaring costs less than asking.
    """
    limit = tau**2 * (1 - 1e3 * torch.finfo(gram.dtype).eps)  # a margin for the rounding of the products
    norm = torch.linalg.vector_norm(gram, dim=(1, 2))
    upper = torch.minimum(norm, torch.linalg.vector_norm(gram, ord=1, dim=2).amax(1))
    lower = gram.diagonal(dim1=1, dim2=2).real.amax(1)
    power = gram / norm.view(-1, 1, 1).clamp_min(torch.finfo(norm.dtype).tiny)
    for k in range(1, SQUARINGS + 1):
        if not gram.is_cuda and not ((upper.numpy() > limit) & (lower.numpy() < limit)).any():
            break
        power = torch.bmm(power, power)
        size = torch.linalg.vector_norm(power, dim=(1, 2))
        upper = torch.minimum(upper, norm * size ** (0.5**k))
        if k == 1:
            lower = torch.maximum(lower, norm * size)
    bound = upper.to("cpu", torch.float64).numpy()
    return bound, bound <= limit


def _columns(like: Tensor, *values: Floats) -> Tensor:
    """(B,) numbers each -> (len(values), B, 1, 1) beside `like`, in one transfer."""
    return torch.from_numpy(np.stack(values)).to(like.device, like.real.dtype).view(len(values), -1, 1, 1)

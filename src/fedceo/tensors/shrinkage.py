"""Singular-value soft-thresholding of stacks of matrices, the core of the truncated t-SVD.

For A with d >= n columns and Gram matrix G = A^H A = V diag(s^2) V^H,

    SVT(A, tau) = U max(S - tau, 0) V^H = A P,    P = V diag(max(1 - tau / s, 0)) V^H,

so the n x n filter P, a function of G alone, does the work of a d x n SVD; fedceo.tensors.filters makes it.

Rounding errors in G and its decomposition move the result by a few eps ||A||_2^2 / tau. Each matrix is therefore worked
in the lowest precision for which that is small enough: that of the input, then float64, then an SVD without G. A GPU,
which is as fast in float64, starts with that.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedceo.tensors.checks import Floats
from fedceo.tensors.filters import bounds, columns, filter_by_eigh, filter_by_sign

TOLERANCE = {torch.float32: 3e-6, torch.float64: 3e-13}
"""Error allowed, relative to the whole tensor's norm: a third of the error that truncated_tsvd promises."""

Stack = tuple[Tensor, Floats, float]
"""(B, d, n) matrices, real or complex; (B,) positive thresholds; the Frobenius norm of the whole tensor of which the
matrices are slices, relative to which accuracy is promised."""

SMALL = 128
"""Columns up to which matrices of different sizes go into one batch on a GPU."""

TOGETHER_BYTES = 2**30
"""Working memory for the stacks that a GPU works on at the same time."""

MOST_CONDITION = 1e14
"""The largest G / tau^2 whose inverse square root can be computed by products: beyond it rounding makes eigenvalues
negative."""


def shrink_here(stacks: Iterable[Stack]) -> Iterator[tuple[int, Tensor]]:
    """(number of the stack, its shrunk matrices), on a GPU as many at once as TOGETHER_BYTES hold, else one by one."""
    waiting: dict[int, Stack] = {}
    held = 0
    for k, stack in enumerate(stacks):
        matrices = stack[0]
        if not prefers_products(matrices):
            yield k, shrink(*stack)
            continue
        copies = 4 if is_small(matrices) else 1  # in float64, as real matrices
        needs = 16 * len(matrices) * (8 * min(matrices.shape[1:]) ** 2 + copies * matrices[0].numel())
        if waiting and held + needs > TOGETHER_BYTES:
            yield from zip(waiting, shrink_together(list(waiting.values())), strict=True)
            waiting, held = {}, 0
        waiting[k] = stack
        held += needs
    if waiting:
        yield from zip(waiting, shrink_together(list(waiting.values())), strict=True)


def shrink(matrices: Tensor, tau: Floats, total: float) -> Tensor:
    """The soft-thresholding SVT of each matrix of a stack at its own threshold."""
    if matrices.shape[1] < matrices.shape[2]:
        return shrink(matrices.mH, tau, total).mH
    single = matrices.real.dtype == torch.float32
    precisions = (torch.float32, torch.float64) if single else (torch.float64,)
    return _shrink_in(precisions, matrices, tau, _tolerance(matrices, total))


def prefers_products(matrices: Tensor) -> bool:
    return matrices.is_cuda and matrices.real.dtype == torch.float32


def is_small(matrices: Tensor) -> bool:
    """Whether matrices of this kind are worked in one batch with others, all frequencies as complex ones."""
    return prefers_products(matrices) and min(matrices.shape[1:]) <= SMALL


def _shrink_in(precisions: tuple[torch.dtype, ...], matrices: Tensor, tau: Floats, tolerance: float) -> Tensor:
    """`shrink` with the Gram matrix in the first precision that meets the tolerance, by SVD when none does."""
    if not precisions:
        return _shrink_by_svd(matrices, tau)
    precision, *higher = precisions
    gram = _gram(matrices, precision)
    limit = _limit(tau, precision)
    for upper, lower in bounds(gram):
        if not gram.is_cuda and not ((upper.numpy() > limit) & (lower.numpy() < limit)).any():
            break  # closer bounds would decide nothing; a GPU finds them in less time than it takes to ask
    largest = upper.to("cpu", torch.float64).numpy()
    is_zero = largest <= limit
    is_fine = _rounding(precision, largest, tau) <= tolerance
    here, later = is_fine & ~is_zero, ~is_fine & ~is_zero
    if here.all():
        return matrices @ filter_by_eigh(gram, tau).to(matrices.dtype)
    out = torch.zeros_like(matrices)
    if here.any():
        at = torch.from_numpy(here)
        out[at] = matrices[at] @ filter_by_eigh(gram[at], tau[here]).to(matrices.dtype)
    if later.any():
        at = torch.from_numpy(later)
        out[at] = _shrink_in(tuple(higher), matrices[at], tau[later], tolerance)
    return out


def _shrink_by_svd(matrices: Tensor, tau: Floats) -> Tensor:
    """`shrink` by SVD; on a GPU with the driver gesvd and in float64, else it is a hundred times less accurate."""
    precise, driver = matrices, None
    if matrices.is_cuda:
        precise, driver = matrices.to(torch.promote_types(matrices.dtype, torch.float64)), "gesvd"
    u, s, vh = torch.linalg.svd(precise, full_matrices=False, driver=driver)
    kept = (s.unsqueeze(1) - columns(s, tau)[0]).clamp_min(0)
    return ((u * kept) @ vh).to(matrices.dtype)


def shrink_together(stacks: Sequence[Stack]) -> list[Tensor]:
    """`shrink` of several stacks by matrix products, made for a GPU.

    Where matrices are small, launching a product takes a GPU longer than computing it, and so does waiting for a
    decision of the host. So the host gets all its numbers in one transfer, the widest matrices are queued first, and
    stacks are joined into batches: those of equal width as they are, and small ones padded with zeros to one width.
    """
    tall = [m if m.shape[1] >= m.shape[2] else m.mH for m, _, _ in stacks]
    tau = [tau for _, tau, _ in stacks]
    tolerance = [np.full(len(m), _tolerance(m, total)) for m, (_, _, total) in zip(tall, stacks, strict=True)]
    groups: dict[tuple[int, bool], list[int]] = {}
    for k, m in enumerate(tall):
        groups.setdefault((0, True) if is_small(m) and m.is_complex() else (m.shape[2], m.is_complex()), []).append(k)
    widest_first = sorted(groups.items(), reverse=True)
    batches = [_Batch.of([tall[k] for k in members], is_small=width == 0) for (width, _), members in widest_first]
    largest = torch.cat([list(bounds(batch.gram))[-1][0] for batch in batches]).to("cpu", torch.float64).numpy()
    found: dict[int, Tensor] = {}
    for batch, (_, members) in zip(batches, widest_first, strict=True):
        here, largest = largest[: len(batch.gram)], largest[len(batch.gram) :]
        shrunk = batch.shrink(
            here, np.concatenate([tau[k] for k in members]), np.concatenate([tolerance[k] for k in members])
        )
        found |= zip(members, shrunk, strict=True)
    return [found[k] if m is stacks[k][0] else found[k].mH for k, m in enumerate(tall)]


@dataclass(frozen=True)
class _Batch:
    """Stacks whose filters are computed together."""

    stacks: list[Tensor]
    factors: list[Tensor]
    """(B, 2d, 2n) real forms of small stacks, else the stacks themselves."""
    gram: Tensor
    """(sum of B, m, m), float64 or complex128."""
    is_small: bool

    @classmethod
    def of(cls, stacks: list[Tensor], is_small: bool) -> "_Batch":
        """A batch of stacks; small complex matrices become real ones, which a GPU multiplies several times faster."""
        factors = [_as_real(m) for m in stacks] if is_small else stacks
        grams = [_gram(factor, torch.float64) for factor in factors]
        if not is_small:
            return cls(stacks, factors, torch.cat(grams), is_small)
        size = max(gram.shape[2] for gram in grams)
        padded = [torch.nn.functional.pad(gram, 2 * (0, size - gram.shape[2])) for gram in grams]
        return cls(stacks, factors, torch.cat(padded), is_small)

    def shrink(self, largest: Floats, tau: Floats, tolerance: Floats) -> list[Tensor]:
        is_zero = largest <= _limit(tau, torch.float64)
        is_fine = (_rounding(torch.float64, largest, tau) <= tolerance) & (largest <= MOST_CONDITION * tau**2)
        keep = self._filters(is_fine & ~is_zero, tau, largest, tolerance)
        counts = [len(m) for m in self.stacks]
        shrunk = [self._apply(k, p) for k, p in enumerate(torch.split(keep, counts))]
        ends = np.cumsum(counts)[:-1]
        by_svd, taus = np.split(~is_fine & ~is_zero, ends), np.split(tau, ends)
        for m, out, left, t in zip(self.stacks, shrunk, by_svd, taus, strict=True):
            if left.any():
                at = torch.from_numpy(left)
                out[at] = _shrink_by_svd(m[at], t[left])
        return shrunk

    def _filters(self, busy: npt.NDArray[np.bool_], tau: Floats, largest: Floats, tolerance: Floats) -> Tensor:
        if busy.all():
            return filter_by_sign(self.gram, tau, largest, tolerance)
        keep = torch.zeros_like(self.gram)
        if busy.any():
            at = torch.from_numpy(busy)
            keep[at] = filter_by_sign(self.gram[at], tau[busy], largest[busy], tolerance[busy])
        return keep

    def _apply(self, k: int, keep: Tensor) -> Tensor:
        m, factor = self.stacks[k], self.factors[k]
        if not self.is_small:
            return m @ keep.to(m.dtype)
        n = factor.shape[2]
        parts = (factor @ keep[:, :n, :n:2]).view(len(m), m.shape[1], 2, m.shape[2])
        return torch.view_as_complex(parts.movedim(2, 3).to(m.real.dtype).contiguous())


def _as_real(matrices: Tensor) -> Tensor:
    """Complex (B, d, n) as float64 (B, 2d, 2n) with every singular value twice: x + iy becomes ((x, -y), (y, x))."""
    count, d, n = matrices.shape
    pairs = torch.view_as_real(torch.stack([matrices, matrices * 1j], dim=3))
    return pairs.permute(0, 1, 4, 2, 3).to(torch.float64).reshape(count, 2 * d, 2 * n)


def _tolerance(tall: Tensor, total: float) -> float:
    """The error allowed in one singular value: n such errors add up to sqrt(n) times one of them."""
    return TOLERANCE[tall.real.dtype] * total / math.sqrt(tall.shape[2])


def _rounding(precision: torch.dtype, largest: Floats, tau: Floats) -> Floats:
    """The change of a singular value by rounding errors in the Gram matrix."""
    return 2 * torch.finfo(precision).eps * largest / tau


def _limit(tau: Floats, precision: torch.dtype) -> Floats:
    """The largest computed eigenvalue that proves the true one to be at most tau^2, with a margin for rounding."""
    return tau**2 * (1 - 1e3 * torch.finfo(precision).eps)


def _gram(matrices: Tensor, precision: torch.dtype) -> Tensor:
    """The Gram matrix A^H A; for A = X + iY it is (X'X + Y'Y) + i(X'Y - Y'X), the work of six products, not eight."""
    if not matrices.is_complex():
        precise = matrices.to(precision)
        return precise.mT @ precise
    stacked = torch.cat([matrices.real, matrices.imag], dim=1).to(precision)
    x, y = stacked.chunk(2, dim=1)
    cross = x.mT @ y
    return torch.complex(stacked.mT @ stacked, cross - cross.mT)

"""The truncated t-SVD: soft-thresholding of the singular values in the Fourier domain of the client axis.

How it is made fast without losing digits:

- a real tensor has floor(K/2)+1 distinct frequencies, one or two of them real matrices;
- a slice whose largest singular value provably lies below its threshold is zero and is not decomposed;
- a slice of one row or column has its norm as its only singular value;
- any other slice A (on its thin side, n columns) is multiplied by one n x n filter made from its Gram matrix, see
  fedceo.tensors.shrinkage; where squaring the condition number would cost accuracy, an SVD takes its place;
- rows and frequencies are worked in chunks, so that beside input, spectrum and output only CHUNK_BYTES are held.
"""

import math
from collections.abc import Callable, Iterable
from itertools import starmap

import numpy as np
import torch
from torch import Tensor

from fedceo.tensors.checks import Floats, check_finite, check_form, frequency_thresholds
from fedceo.tensors.shrinkage import shrink

CHUNK_BYTES = {"cpu": 16 * 2**20, "cuda": 256 * 2**20}
"""Working memory at a time. A CPU gains from staying near its cache, a GPU from batches that fill it."""

SMALL_ON_A_GPU = 128
"""Up to this size a GPU takes all frequencies as one complex batch: its time goes into launches, not arithmetic."""


ShrinkAll = Callable[[Iterable[tuple[Tensor, Floats, float]]], Iterable[tuple[int, Tensor]]]
"""From the arguments of `shrink` for every chunk to (which chunk, its result), in any order."""


def shrink_one_by_one(stacks: Iterable[tuple[Tensor, Floats, float]]) -> Iterable[tuple[int, Tensor]]:
    """Every chunk here, one after another."""
    return enumerate(starmap(shrink, stacks))


@torch.no_grad()
def truncated_tsvd(w: Tensor, threshold: float | Tensor, shrink_all: ShrinkAll = shrink_one_by_one) -> Tensor:
    """T-tSVD(W, threshold) = U * D * V^H with D = max(S - threshold, 0) in the Fourier domain (theorem 3.1).

    Args:
        w: (d, h, K), one matrix per client.
        threshold: a number, or one per frequency (K of them, the same for frequencies i and K - i). It is compared
            with the singular values of the unnormalised DFT, which `spectrum` returns.
        shrink_all: who works on the frequencies, which do not depend on each other.

    Returns:
        The minimiser of tau ||X - W||_F^2 + ||X||_* for threshold = 1 / (2 tau), equation 3: what FedCEO's server
        computes with tau = strength / ratio^(t/I). It is a new tensor, without gradient.

    The error is below 1e-5 ||W||_F in float32 and 1e-12 ||W||_F in float64, whatever the threshold.
    """
    check_form(w, "w")
    tau = frequency_thresholds(threshold, w.shape[2])
    slices, norms, scale = _to_frequencies(w)
    tau = tau / scale
    if min(w.shape[:2]) == 1:
        keep = np.where(norms > tau, 1 - tau / np.where(norms > 0, norms, 1), 0)
        slices *= torch.from_numpy(keep).view(-1, 1, 1).to(w.device, w.dtype)
    else:
        _shrink_slices(slices, tau, norms, w.shape[2], shrink_all)
    return _to_clients(slices, w, scale)


def _shrink_slices(slices: Tensor, tau: Floats, norms: Floats, clients: int, shrink_all: ShrinkAll) -> None:
    """Soft-threshold the singular values of every slice, in place."""
    total = math.sqrt(2 * float(norms @ norms))
    for i in np.flatnonzero((norms <= tau) & (tau > 0)):
        slices[int(i)] = 0
    busy = (norms > tau) & (tau > 0)
    chunks = [
        (_evenly_spaced(chunk), tau[chunk], is_real)
        for group, is_real in _groups(slices, clients)
        for chunk in _chunks([i for i in group if busy[i]], _slices_per_chunk(slices))
    ]
    stacks = ((slices[at].real if is_real else slices[at], t, total) for at, t, is_real in chunks)
    for k, shrunk in shrink_all(stacks):
        slices[chunks[k][0]] = shrunk.to(slices.dtype)


def _groups(slices: Tensor, clients: int) -> list[tuple[list[int], bool]]:
    """The frequencies that are worked together, and whether as real matrices.

    The real slices (frequency 0 and, for even K, K/2) go apart: real arithmetic is four times cheaper, and a GPU's
    iterations are as many as the worst slice of a batch needs, which is frequency 0, the sum of all clients.
    """
    frequencies = list(range(len(slices)))
    if slices.is_cuda and min(slices.shape[1:]) <= SMALL_ON_A_GPU:
        return [(frequencies, False)]
    real = [0, clients // 2] if clients % 2 == 0 else [0]
    return [([i for i in frequencies if i not in real], False), (real, True)]


def _chunks(places: list[int], size: int) -> list[list[int]]:
    return [places[start : start + size] for start in range(0, len(places), size)]


def _evenly_spaced(places: list[int]) -> slice | list[int]:
    """A slice instead of a list of places where that is the same: a view instead of a copy."""
    step = places[1] - places[0] if len(places) > 1 else 1
    stop = places[-1] + 1
    return slice(places[0], stop, step) if places == list(range(places[0], stop, step)) else places


def _slices_per_chunk(slices: Tensor) -> int:
    _, d, h = slices.shape
    n = min(d, h)
    return max(1, _chunk_bytes(slices) // (16 * (2 * d * h + 8 * n * n)))


def _row_chunks(w: Tensor) -> list[slice]:
    d, h, clients = w.shape
    rows = max(1, _chunk_bytes(w) // (16 * h * clients))
    return [slice(start, min(start + rows, d)) for start in range(0, d, rows)]


def _chunk_bytes(w: Tensor) -> int:
    return CHUNK_BYTES.get(w.device.type, CHUNK_BYTES["cpu"])


def _to_frequencies(w: Tensor) -> tuple[Tensor, Floats, float]:
    """The DFT over clients of w / scale, (floor(K/2)+1, d, h), the norm of each slice, and the scale.

    The scale is 1 unless squares of the entries could leave the range of the numbers, and else a power of two, which
    changes no digit. One transfer brings everything that the host must know of the values.
    """
    slices = _transform(w)
    norms = torch.linalg.vector_norm(slices, dim=(1, 2))
    low, high, *values = torch.cat([torch.stack(w.aminmax()), norms]).tolist()
    check_finite([low, high], "w")
    peak, scale = max(-low, high), 1.0
    if not 1e-9 < peak < 1e9 and peak > 0:
        scale = 2.0 ** math.frexp(peak)[1]
        slices = _transform(w / scale)
        values = torch.linalg.vector_norm(slices, dim=(1, 2)).tolist()
    return slices, np.array(values), scale


def _transform(w: Tensor) -> Tensor:
    d, h, clients = w.shape
    slices = torch.empty(clients // 2 + 1, d, h, dtype=w.dtype.to_complex(), device=w.device)
    for rows in _row_chunks(w):
        slices[:, rows] = torch.fft.rfft(w[rows], dim=2).movedim(2, 0)
    return slices


def _to_clients(slices: Tensor, like: Tensor, scale: float) -> Tensor:
    """Undo _to_frequencies, into the memory layout of `like`."""
    out = torch.empty_like(like)
    for rows in _row_chunks(like):
        by_entry = slices[:, rows].movedim(0, 2).contiguous()
        out[rows] = torch.fft.irfft(by_entry, n=like.shape[2], dim=2)
    return out if scale == 1.0 else out.mul_(scale)

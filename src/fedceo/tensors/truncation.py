"""The truncated t-SVD: soft-thresholding of the singular values in the Fourier domain of the client axis.

It is fast, and loses no digits, for these reasons:

- a real tensor has floor(K/2)+1 distinct frequencies, one or two of them real matrices;
- a slice whose largest singular value provably lies below its threshold is zero and is not decomposed;
- a slice of one row or column has its norm as its only singular value;
- any other slice A (on its thin side, n columns) is multiplied by one n x n filter made from its Gram matrix, see
  fedceo.tensors.shrinkage; where squaring the condition number would cost accuracy, an SVD takes its place;
- rows and frequencies are worked in chunks, so that memory holds little more than input, spectrum, output and
  CHUNK_BYTES, on a GPU TOGETHER_BYTES of fedceo.tensors.shrinkage;
- a GPU is fastest on large batches: tensors that are given together are worked together.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedceo.tensors.checks import Floats, check_finite, check_form, frequency_thresholds
from fedceo.tensors.shrinkage import Stack, is_small, shrink_here

CHUNK_BYTES = {"cpu": 16 * 2**20, "cuda": 256 * 2**20}
"""Working memory of one chunk. A CPU gains from staying near its cache, a GPU from batches that fill it."""

ShrinkAll = Callable[[Iterable[Stack]], Iterable[tuple[int, Tensor]]]
"""A function from the arguments of `shrink` for every chunk to (number of the chunk, its result), in any order."""


def truncated_tsvd(w: Tensor, threshold: float | Tensor, shrink_all: ShrinkAll = shrink_here) -> Tensor:
    """T-tSVD(W, threshold) = U * D * V^H with D = max(S - threshold, 0) in the Fourier domain (theorem 3.1).

    Args:
        w: (d, h, K), one matrix per client.
        threshold: a number, or one per frequency (K of them, the same for frequencies i and K - i). It is compared
            with the singular values of the unnormalised DFT, which `spectrum` returns.
        shrink_all: the function that shrinks the frequencies, which do not depend on each other.

    Returns:
        The minimiser of tau ||X - W||_F^2 + ||X||_* for threshold = 1 / (2 tau), equation 3, which FedCEO's server
        computes with tau = strength / ratio^(t/I). It is a new tensor, without gradient.

    The error is below 1e-5 ||W||_F in float32 and 1e-12 ||W||_F in float64, whatever the threshold.
    """
    check_form(w, "w")
    return _truncate({"w": w}, [frequency_thresholds(threshold, w.shape[2])], shrink_all)[0]


def truncated_tsvds(tensors: Sequence[Tensor], thresholds: Sequence[float | Tensor]) -> list[Tensor]:
    """`truncated_tsvd` of several tensors, such as a model's layers: faster on a GPU than one by one."""
    if len(tensors) != len(thresholds):
        raise ValueError(f"thresholds: {len(thresholds)}, expected one for each of {len(tensors)} tensors")
    for i, w in enumerate(tensors):
        check_form(w, f"tensors[{i}]")
    taus = [frequency_thresholds(threshold, w.shape[2]) for w, threshold in zip(tensors, thresholds, strict=True)]
    return [
        out
        for pack in _packs(tensors)
        for out in _truncate({f"tensors[{i}]": tensors[i] for i in pack}, [taus[i] for i in pack], shrink_here)
    ]


def _packs(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Runs of neighbouring tensors of one dtype and device that fit into CHUNK_BYTES; a larger tensor stays alone."""
    packs: list[list[int]] = []
    room = 0
    for i, w in enumerate(tensors):
        before = tensors[i - 1]
        room -= w.nbytes
        if i == 0 or room < 0 or (w.device, w.dtype) != (before.device, before.dtype):
            packs.append([])
            room = _chunk_bytes(w) - w.nbytes
        packs[-1].append(i)
    return packs


@torch.no_grad()
def _truncate(named: Mapping[str, Tensor], taus: Sequence[Floats], shrink_all: ShrinkAll) -> list[Tensor]:
    """The truncated t-SVDs of some tensors; named: the tensors by their names in errors."""
    tensors, spectra = list(named.values()), _to_frequencies(named)
    with np.errstate(over="ignore"):  # an infinite threshold makes everything zero, which is right
        taus = [tau / scale for tau, (_, _, scale) in zip(taus, spectra, strict=True)]
    stacks: list[tuple[Tensor, slice | list[int], bool, Floats, float]] = []
    for w, tau, (slices, norms, _) in zip(tensors, taus, spectra, strict=True):
        if min(w.shape[:2]) == 1:
            keep = np.where(norms > tau, 1 - tau / np.where(norms > 0, norms, 1), 0)
            slices *= torch.from_numpy(keep).view(-1, 1, 1).to(w.device, w.dtype)
            continue
        if is_zero := np.flatnonzero((norms <= tau) & (tau > 0)).tolist():
            slices[_evenly_spaced(is_zero)] = 0
        total = math.sqrt(2 * float(norms @ norms))
        for chunk, is_real in _chunks(slices, w.shape[2], (norms > tau) & (tau > 0)):
            stacks.append((slices, _evenly_spaced(chunk), is_real, tau[chunk], total))
    given = ((slices[at].real if real else slices[at], tau, total) for slices, at, real, tau, total in stacks)
    for k, shrunk in shrink_all(given):
        slices, at, *_ = stacks[k]
        slices[at] = shrunk.to(slices.dtype)
    return [_to_clients(slices, w, scale) for w, (slices, _, scale) in zip(tensors, spectra, strict=True)]


def _chunks(slices: Tensor, clients: int, busy: npt.NDArray[np.bool_]) -> Iterator[tuple[list[int], bool]]:
    """The frequencies that must be shrunk, in chunks, and whether as real matrices.

    The real slices (frequency 0 and, for even K, K/2) have chunks of their own: real arithmetic is four times cheaper,
    and a GPU iterates as often as the worst slice of a batch needs, which is frequency 0, the sum of all clients. Small
    slices on a GPU are in one batch with those of other tensors anyway.
    """
    _, d, h = slices.shape
    frequencies, size = range(len(slices)), max(1, _chunk_bytes(slices) // (16 * (2 * d * h + 8 * min(d, h) ** 2)))
    real = [0, clients // 2] if clients % 2 == 0 else [0]
    groups = [([i for i in frequencies if i not in real], False), (real, True)]
    if is_small(slices):
        groups = [(list(frequencies), False)]
    for group, is_real in groups:
        indices = [i for i in group if busy[i]]
        yield from ((indices[start : start + size], is_real) for start in range(0, len(indices), size))


def _evenly_spaced(indices: list[int]) -> slice | list[int]:
    """The indices as a slice where they are evenly spaced: indexing then gives a view instead of a copy."""
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    stop = indices[-1] + 1
    return slice(indices[0], stop, step) if indices == list(range(indices[0], stop, step)) else indices


def _row_chunks(w: Tensor) -> list[slice]:
    d, h, clients = w.shape
    rows = max(1, _chunk_bytes(w) // (16 * h * clients))
    return [slice(start, min(start + rows, d)) for start in range(0, d, rows)]


def _chunk_bytes(w: Tensor) -> int:
    return CHUNK_BYTES.get(w.device.type, CHUNK_BYTES["cpu"])


def _to_frequencies(named: Mapping[str, Tensor]) -> list[tuple[Tensor, Floats, float]]:
    """For each tensor, the DFT over clients of w / scale, (floor(K/2)+1, d, h), the norms of its slices, and the scale.

    The scale is 1 unless squares of the entries could overflow or underflow, and else a power of two, which changes no
    digit. One transfer brings the host all the numbers on which it decides.
    """
    tensors = named.values()
    spectra = [_transform(w) for w in tensors]
    sizes = [torch.linalg.vector_norm(slices, dim=(1, 2)) for slices in spectra]
    about = [torch.cat([torch.stack(w.aminmax()), size]) for w, size in zip(tensors, sizes, strict=True)]
    values = torch.cat(about).tolist()
    found = []
    for (name, w), slices in zip(named.items(), spectra, strict=True):
        (low, high), norms, values = values[:2], values[2 : 2 + len(slices)], values[2 + len(slices) :]
        check_finite([low, high], name)
        peak, scale = max(-low, high), 1.0
        if not 1e-9 < peak < 1e9 and peak > 0:
            scale = 2.0 ** (math.frexp(peak)[1] - 1)  # without - 1 the largest numbers would overflow
            slices = _transform(w / scale)
            norms = torch.linalg.vector_norm(slices, dim=(1, 2)).tolist()
        found.append((slices, np.array(norms), scale))
    return found


def _transform(w: Tensor) -> Tensor:
    d, h, clients = w.shape
    slices = torch.empty(clients // 2 + 1, d, h, dtype=w.dtype.to_complex(), device=w.device)
    for rows in _row_chunks(w):
        slices[:, rows] = torch.fft.rfft(w[rows], dim=2).movedim(2, 0)
    return slices


def _to_clients(slices: Tensor, like: Tensor, scale: float) -> Tensor:
    """The inverse of _to_frequencies, in the memory layout of `like`."""
    out = torch.empty_like(like)
    for rows in _row_chunks(like):
        by_entry = slices[:, rows].movedim(0, 2).contiguous()
        out[rows] = torch.fft.irfft(by_entry, n=like.shape[2], dim=2)
    return out if scale == 1.0 else out.mul_(scale)

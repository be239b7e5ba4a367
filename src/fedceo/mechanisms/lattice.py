"""Gaussian noise on a lattice, which the lowest bits of floating-point numbers cannot betray (Mironov 2012).

A clipped update is rounded towards zero to whole multiples of a step, and the noise is a normal number rounded to the
nearest whole multiple. Both are whole numbers until they have been added, so that every result is possible for every
update. For a whole number k and a real normal z

    k + round(s z) = round(k + s z),

which is the Gaussian mechanism with its result rounded: what is computed from a private result is no less private. A
sum of such shares is a blurred and rounded Gaussian of their whole variance. So every epsilon of Gaussian noise holds
as it is (D16). Rounding towards zero makes no update longer, so that the clip stays the sensitivity.

`rounded_normals` draws round(s z) exactly but for 2^-100 in total variation: float64 decides where it can, with a
margin a thousand times its error, and 256 bits decide where it cannot.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedceo.lazy import torch
from fedceo.tensors.weights import Weights, as_rows, from_rows

Floats = npt.NDArray[np.float64]

FINENESS = 2.0**20
"""Standard deviations of the noise in steps of the lattice: rounding an update costs a millionth of its noise."""
MARGIN = 1e-12
"""How far from a half, relative to the normal number, float64 may decide to which side it is rounded."""
DEEP_TAIL = 2.0**-24
"""The probability below which 63 bits of a uniform number say too little about the normal one."""
SHRINK = 1 - 1e-9
"""What keeps clipped updates within the clip in spite of rounding."""


def rounded_normals(count: int, scale: float, generator: np.random.Generator) -> Floats:
    """(count,) whole numbers round(scale z) of independent standard normals z."""
    from scipy.special import ndtri

    words = np.frombuffer(generator.bytes(8 * count), np.uint64)
    positive = (words & np.uint64(1)).astype(bool)
    tails = (words >> np.uint64(1)) * 2.0**-64  # P(|z| is larger) / 2, in [0, 1/2)
    with np.errstate(divide="ignore"):
        sizes = -ndtri(tails)
    scaled = scale * sizes
    with np.errstate(invalid="ignore"):
        to_half = np.abs(scaled - np.floor(scaled) - 0.5)
    unsure = (tails < DEEP_TAIL) | ~(to_half > scale * MARGIN * (1 + sizes))
    whole = np.floor(scaled + 0.5)
    for index in np.flatnonzero(unsure):
        further = int.from_bytes(generator.bytes(8), "little")
        whole[index] = _decided(((int(words[index]) >> 1) << 64) | further, scale)
    return np.where(positive, whole, -whole)


def _decided(tail: int, scale: float) -> float:
    """round(scale z) for the positive normal z that is exceeded with probability tail / 2^128."""
    import mpmath

    with mpmath.workprec(256):
        probability = mpmath.mpf(tail or 1) / mpmath.mpf(2) ** 128
        size = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * probability)
        return float(mpmath.floor(scale * size + mpmath.mpf(1) / 2))


def on_lattice(updates: Weights, clip: float, step: float) -> Floats:
    """(K, D) clipped updates in whole steps of the lattice, none longer than the clip."""
    rows = as_rows({name: u.double() for name, u in updates.items()}).cpu().numpy()
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    factors = np.minimum(1.0, clip * SHRINK / np.maximum(norms, np.finfo(np.float64).tiny))
    return np.trunc(rows * factors / step)


def from_lattice(whole: Floats, step: float, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """(K, D) whole steps as name -> (K, ...), in the shapes, precision and place of `like`."""
    first = next(iter(like.values()))
    rows = torch.from_numpy(whole * step).to(first.device, first.dtype)
    return from_rows(rows, like)

"""Random numbers of the operating system, for the choices that privacy rests on where randomness is "system".

NumPy's generators are fast and statistically good, but whoever sees enough of their output can compute the rest. The
operating system's is a cryptographic one (on Linux ChaCha20, keyed from hardware): without its key nobody can tell its
bits from coin tosses, and no state of it lies in this process.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
CHUNK = 1 << 16
"""Numbers that are made at a time, so that all steps find them in the processor's cache."""


class SystemGenerator:
    """The operating system's generator, with those methods of NumPy's Generator that a Schedule's callers use."""

    def bytes(self, length: int) -> bytes:
        return os.urandom(length)

    def random(self, size: Any = None, dtype: Any = np.float64) -> Any:
        """Uniform numbers in [0, 1): multiples of 2^-53, or of 2^-24 in float32."""
        bits = 24 if np.dtype(dtype) == np.float32 else 53
        drawn = (self._words(size) >> np.uint64(64 - bits)).astype(dtype) * np.dtype(dtype).type(2.0**-bits)
        return drawn if size is not None else float(drawn)

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Array | None = None) -> Any:
        """Normals by Box and Muller's transform in float64, up to 8.57 standard deviations."""
        if out is None:
            out = np.empty(() if size is None else size, dtype)
        rows = out.reshape(-1)
        for first in range(0, rows.size, CHUNK):
            part = rows[first : first + CHUNK]
            part[:] = self._normals(part.size)
        out[...] = rows.reshape(out.shape)
        return out if size is not None or out.ndim else float(out)

    def integers(self, high: int) -> int:
        """A number from 0 up to, but without, `high`."""
        return secrets.randbelow(high)

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        """The numbers below `count` in random order."""
        return np.argsort(self._words(count), kind="stable")

    def _normals(self, count: int) -> Array:
        pairs = -(-count // 2)
        uniform = (self._words((2, pairs)) >> np.uint64(11)) * 2.0**-53
        radius = np.sqrt(-2.0 * np.log1p(-uniform[0]))  # of 1 - u, which is never zero
        angle = 2 * np.pi * uniform[1]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]

    def _words(self, size: Any) -> Array:
        shape = () if size is None else size
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(os.urandom(8 * count), np.uint64).reshape(shape)

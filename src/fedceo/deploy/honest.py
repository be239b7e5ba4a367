"""The uploads that an honest client can have sent, and the server's tests of them.

An honest upload lies c + s z from its start: c is the clipped update, |c| <= C, z are independent standard normal
numbers and s is the client's share of the noise (all in units of an upload, the server's step included). Of D entries
in any place, of a matrix of d x h and of the part in a space of m dimensions that does not depend on z it holds, each
but for a probability p, with x = ln(1/p):

    length       |c + s z|^2 <= C^2 + s^2 D + 2 s sqrt((s^2 D + 2 C^2) x) + 2 s^2 x          (Birgé 2001, lemma 8.1)
    and          |c + s z|^2 >= s^2 times the p-quantile of chi-squared with D degrees of freedom
    matrices     largest singular value <= C + s (sqrt(d) + sqrt(h) + sqrt(2 x))             (Davidson and Szarek 2001)
    entries      largest entry <= C + s times the normal number that is exceeded with probability p / 2D
    directions   length of the projection <= C + s times the chi number, of m degrees, exceeded with probability p

Whoever adds too little noise is refused too: the others' epsilons count on it. p is MISTAKE over the number of tests of
an upload, so that an honest one is refused with probability MISTAKE at most, whatever its update and whatever the
others send. docs/federation.md says what that adds to delta, and what a client can still do that passes every test.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from scipy import stats
from torch import Tensor

from fedceo.mechanisms.base import Mechanism
from fedceo.tensors.weights import Weights

MISTAKE = 1e-30
"""The largest probability with which an honest upload is refused; delta pays up to e^epsilon times for it."""
ROUNDING = 1e-5
"""Relative error that an honest upload may have from float32 sums and from noise on a lattice."""


@dataclass(frozen=True)
class Honest:
    """The bounds of an honest upload's distance from its start, in the units of weights.

    Attributes:
        clip: the largest length of the clipped update, of all tensors together.
        tensor_clip: the same of a single tensor.
        share: standard deviation of the noise in an entry.
        mistake: p, the probability with which an honest upload fails a single test.
    """

    clip: float
    tensor_clip: float
    share: float
    mistake: float

    @staticmethod
    def under(mechanism: Mechanism, model: Weights, directions: int) -> "Honest":
        """The bounds under a mechanism; directions: how many an upload is held against, at most."""
        tests = 2 + 4 * len(model) + directions
        clip = mechanism.step * mechanism.clip
        per_tensor = clip / len(model) ** 0.5 if mechanism.clipping == "per_layer" else clip
        return Honest(clip, per_tensor, mechanism.noise * clip, MISTAKE / tests)

    def lengths(self, clip: float, entries: int) -> tuple[float, float]:
        """The least and the largest length of so many entries."""
        share, x = self.share, -math.log(self.mistake)
        spread = 2 * share * math.sqrt((share**2 * entries + 2 * clip**2) * x)
        most = clip**2 + share**2 * entries + spread + 2 * share**2 * x
        return share * float(stats.chi.ppf(self.mistake, entries)), math.sqrt(most)

    def singular_value(self, rows: int, columns: int) -> float:
        """The largest singular value of a tensor that is such a matrix."""
        room = math.sqrt(-2 * math.log(self.mistake))
        return self.tensor_clip + self.share * (math.sqrt(rows) + math.sqrt(columns) + room)

    def entry(self, entries: int) -> float:
        """The largest of a tensor's so many entries, whatever its sign."""
        return self.tensor_clip + self.share * float(stats.norm.isf(self.mistake / (2 * entries)))

    def along(self, dimensions: int) -> float:
        """The longest projection on a space of so many dimensions that the noise does not know."""
        return self.clip + self.share * float(stats.chi.isf(self.mistake, dimensions))

    def lie(self, update: Weights, start: Weights) -> str | None:
        """What no honest upload is, in a line; None where nothing is wrong with the upload by itself.

        Args:
            update: the upload less its start.
        """
        entries = sum(u.numel() for u in update.values())
        whole = _outside("the upload", _length(update), self.lengths(self.clip, entries), _length(start))
        if whole is not None:
            return whole
        return next((lie for name, u in update.items() if (lie := self._lie_in(name, u, start[name]))), None)

    def _lie_in(self, name: str, update: Tensor, start: Tensor) -> str | None:
        """What is wrong with one tensor, a convolution's being the matrix of (out, all else)."""
        update, start, entries = update.double(), start.double(), update.numel()
        if not entries:
            return None
        bounds = self.lengths(self.tensor_clip, entries)
        lie = _outside(name, float(update.norm()), bounds, float(start.norm()))
        lie = lie or _above(
            f"the largest entry of {name} is",
            float(update.abs().max()),
            self.entry(entries),
            float(start.abs().max()),
        )
        if lie or update.ndim < 2:
            return lie
        shape = len(update), prod(update.shape[1:])
        found, most = _largest_singular_value(update.reshape(shape)), self.singular_value(*shape)
        return _above(f"the largest singular value of {name} is", found, most, float(start.norm()))

    def lie_along(self, update: Tensor, start: float, known: Mapping[str, Tensor]) -> str | None:
        """What no honest upload has in common with directions that its noise cannot know, in a line, or None.

        Args:
            update: (D,), the upload less its start.
            start: the length of the start, for what rounding explains.
            known: what it is -> (m, D), directions at right angles, as long as each other.
        """
        length = float(update.norm())
        for what, basis in known.items():
            found = float((basis @ update).norm()) / max(float(basis[0].norm()), sys.float_info.min)
            lie = _above(f"the part along {what} is", found, self.along(len(basis)), start + length)
            if lie is not None:
                return lie
        return None


def _outside(what: str, length: float, bounds: tuple[float, float], start: float) -> str | None:
    least, most = bounds
    if least - ROUNDING * (least + start) <= length <= most + ROUNDING * (most + start):
        return None
    return f"{what} is {length:.4g} from its start, expected {least:.4g} to {most:.4g}"


def _above(words: str, found: float, most: float, start: float) -> str | None:
    if found <= most + ROUNDING * (most + start):
        return None
    return f"{words} {found:.4g}, expected at most {most:.4g}"


def _length(weights: Weights) -> float:
    return math.sqrt(sum(float(w.double().square().sum()) for w in weights.values()))


def _largest_singular_value(matrix: Tensor) -> float:
    """By the Gram matrix of the thin side, whose error is far below what rounding explains of the largest."""
    thin = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    return float(torch.linalg.eigvalsh(thin @ thin.T)[-1].clamp_min(0).sqrt())

"""Aggregates of uploads that few of them cannot move far, in the place of the mean (train.aggregation).

    middle = AGGREGATES["median"](stack.weights)      # name -> (m, ...) to name -> (...)

A mean follows one upload as far as that goes; these follow it only as far as uploads scatter. Under distributed noise
uploads scatter by their noise, and what hides in it moves these too: docs/federation.md has the numbers. They are
functions of single uploads, so that only the row holds which is made for these, the server's: the noise of the others,
which hides a client in a mean, does not in a median.

Both work on every entry by itself. A geometric median was measured too and was no better than the mean: uploads, lies
that pass the server's tests among them, are as far apart as their noise is long, so that it weighs them alike.
"""

from __future__ import annotations

from collections.abc import Callable

from fedceo.lazy import torch
from fedceo.tensors.weights import Weights

CUT = 0.2
"""The share of the largest entries, and of the smallest, that a trimmed mean leaves out."""


def median(stack: Weights) -> dict[str, torch.Tensor]:
    """The median of every entry, half-way between the two in the middle of an even number."""
    return {name: _trimmed(w, (len(w) - 1) // 2) for name, w in stack.items()}


def trimmed_mean(stack: Weights) -> dict[str, torch.Tensor]:
    """The mean of every entry without its largest and its smallest fifth (Yin et al. 2018)."""
    return {name: _trimmed(w, int(CUT * len(w))) for name, w in stack.items()}


def _trimmed(values: torch.Tensor, cut: int) -> torch.Tensor:
    """(m, ...) -> (...), the mean without the `cut` largest and smallest values of every entry."""
    return values.sort(0).values[cut : len(values) - cut].mean(0)


AGGREGATES: dict[str, Callable[[Weights], dict[str, torch.Tensor]]] = {
    "median": median,
    "trimmed_mean": trimmed_mean,
}

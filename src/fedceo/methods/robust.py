"""Aggregates of uploads that few of them cannot move far, in the place of the mean (train.aggregation).

    middle = AGGREGATES["median"](stack.weights)      # name -> (m, ...) to name -> (...)

A mean follows one upload as far as that goes; these follow it only as far as uploads scatter. Under distributed noise
uploads scatter by their noise, and what hides in it moves these too: docs/federation.md has the numbers. They are
functions of single uploads, so that only the row holds which is made for these, the server's: the noise of the others,
which hides a client in a mean, does not in a median.
"""

from __future__ import annotations

from collections.abc import Callable

from fedceo.lazy import torch
from fedceo.tensors.weights import Weights, as_rows, from_rows

CUT = 0.2
"""The share of the largest entries, and of the smallest, that a trimmed mean leaves out."""
CLOSE = 1e-6
"""The step, relative to the scatter of the uploads, at which the search for a geometric median ends."""
MOST_STEPS = 200


def median(stack: Weights) -> dict[str, torch.Tensor]:
    """The median of every entry, half-way between the two in the middle of an even number."""
    return {name: _trimmed(w, (len(w) - 1) // 2) for name, w in stack.items()}


def trimmed_mean(stack: Weights) -> dict[str, torch.Tensor]:
    """The mean of every entry without its largest and its smallest fifth (Yin et al. 2018)."""
    return {name: _trimmed(w, int(CUT * len(w))) for name, w in stack.items()}


def geometric_median(stack: Weights) -> dict[str, torch.Tensor]:
    """The model with the least sum of distances to all uploads, by Weiszfeld's steps (Pillutla et al. 2022)."""
    rows = as_rows(stack)
    exact = rows.double()
    middle = exact.mean(0)
    for _ in range(MOST_STEPS):
        distances = (exact - middle).norm(dim=1)
        # an upload that the search has hit would have all the weight
        weights = 1 / distances.clamp_min(float(distances.max()) * CLOSE + torch.finfo(torch.float64).tiny)
        before, middle = middle, (weights / weights.sum()) @ exact
        if float((middle - before).norm()) <= CLOSE * float(distances.max()):
            break
    return {name: w[0] for name, w in from_rows(middle.to(rows.dtype)[None], stack).items()}


def _trimmed(values: torch.Tensor, cut: int) -> torch.Tensor:
    """(m, ...) -> (...), the mean without the `cut` largest and smallest values of every entry."""
    return values.sort(0).values[cut : len(values) - cut].mean(0)


AGGREGATES: dict[str, Callable[[Weights], dict[str, torch.Tensor]]] = {
    "median": median,
    "trimmed_mean": trimmed_mean,
    "geometric_median": geometric_median,
}

"""Types that pass between clients, mechanism and server: a `Contribution` goes into a mechanism, `Uploads` come out.

A `Stack` holds one privatised upload per client. It exists only where each upload carries its own noise, was trained
privately or is not private at all. A `Mean` is the privatised mean alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedceo.lazy import torch
from fedceo.tensors.weights import Weights


@dataclass(frozen=True)
class Contribution:
    """The result of a cohort's training, before any mechanism has seen it.

    Attributes:
        start, trained: name -> (K, ...), the shared part before and after; what leaves a client is their difference,
            clipped and noised.
        personal: name -> (K, ...), what each client keeps for itself.
    """

    start: Weights
    trained: Weights
    personal: Weights = field(default_factory=dict)


@dataclass(frozen=True)
class Senders:
    """The clients that report in a round.

    Attributes:
        round: counted from 1.
        clients: the m client numbers, ascending.
        sizes: (m,) weight of each upload in a mean.
        capped: positions of those at their cap, who send nothing of their own.
    """

    round: int
    clients: tuple[int, ...]
    sizes: torch.Tensor
    capped: tuple[int, ...] = ()


@dataclass(frozen=True)
class Stack:
    """One privatised upload per client that reported.

    Attributes:
        weights: name -> (m, ...), in ascending client number.
        clients: the m client numbers.
        sizes: (m,) weight of each upload in a mean.
        nonfinite: how many updates were NaN or Inf and became zero.
        unclipped: the noised share of updates that were within the clip, where clipping is adaptive.
    """

    weights: Mapping[str, torch.Tensor]
    clients: tuple[int, ...]
    sizes: torch.Tensor
    nonfinite: int
    unclipped: float | None = None

    def mean(self) -> dict[str, torch.Tensor]:
        """The weighted mean, summed in client order."""
        share = self.sizes / self.sizes.sum()
        return {name: torch.tensordot(share.to(w), w, dims=1) for name, w in self.weights.items()}

    def mean_only(self) -> Mean:
        """The mean and nothing of single uploads: all that a method which does not need them is given."""
        return Mean(self.mean(), float(len(self.clients)), self.nonfinite, self.unclipped)


@dataclass(frozen=True)
class Mean:
    """The privatised mean alone.

    Attributes:
        weights: name -> (...).
        divisor: D, what the sum was divided by; the threshold of a mean is that of the stack over D.
        nonfinite, unclipped: as in Stack.
    """

    weights: Mapping[str, torch.Tensor]
    divisor: float
    nonfinite: int
    unclipped: float | None = None

    def mean(self) -> dict[str, torch.Tensor]:
        return dict(self.weights)

    def mean_only(self) -> Mean:
        return self


Uploads = Stack | Mean

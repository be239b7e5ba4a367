"""The buffers of a cohort in training: K models as the rows of one matrix, their batches and their progress."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.context import TrainingContext
from fedceo.training.terms import needs_starts
from fedceo.training.work import Work

GRAIN = (64, 16)
"""On a GPU steps and batches are padded to multiples of these, so that few captured steps serve all rounds."""


class Batch(NamedTuple):
    """One batch of each of K clients.

    Attributes:
        x: (K, B, *shape), the first counts[k] records of client k real, the rest zeros.
        labels: (K, B).
        counts: (K,) records in each client's batch.
        mask: (K, B, units) or none.
    """

    x: Tensor
    labels: Tensor
    counts: Tensor
    mask: Tensor | None = None

    @property
    def present(self) -> Tensor:
        """(K, B) 1 for records, 0 for filling."""
        return (torch.arange(self.x.shape[1], device=self.x.device) < self.counts[:, None]).to(self.x.dtype)

    @property
    def fractions(self) -> Tensor:
        """(K, B) the part of each record in its client's mean: 1 / count, and 0 for filling."""
        return self.present / self.counts.clamp_min(1)[:, None]


@dataclass
class Cohort:
    """The buffers that a step reads and writes, in place, so that a step can be captured and replayed.

    No two of them share memory; one that the Work does not need is None. The table in this package's docstring gives
    the shape and meaning of each.

    Attributes:
        shapes: name -> shape of one client's parameter.
        transposed: names of matrices that lie transposed in their rows.
        size: D, the parameters of a model.
        longest: the steps of the client that takes most.
    """

    shapes: dict[str, torch.Size]
    transposed: frozenset[str]
    size: int
    weights: Tensor
    gradients: Tensor
    momenta: Tensor | None
    starts: Tensor | None
    noised: Tensor | None
    batches: Tensor
    counts: Tensor
    masks: Tensor | None
    steps: Tensor
    longest: int
    step: Tensor
    rate: Tensor
    divisors: Tensor
    keys: Tensor | None
    losses: Tensor

    @staticmethod
    def of(
        starts: Weights,
        context: TrainingContext,
        plans: Sequence[tuple[Tensor, Tensor | None]],
        divisors: Sequence[float],
        work: Work,
        transposed: frozenset[str] = frozenset(),
        keys: Tensor | None = None,
    ) -> "Cohort":
        """The buffers at the start of a round.

        Args:
            starts: name -> (K, ...).
            plans: each client's batches and masks, as TrainingContext.plan gives them.
            divisors: each client's expected batch size.
            keys: (K,) of the noise, where it is a function of keys.
        """
        clients, shapes = len(plans), {name: w.shape[1:] for name, w in starts.items()}
        size = sum(map(prod, shapes.values()))
        weights = torch.empty(clients, -(-size // 4) * 4, dtype=context.dtype, device=context.device)
        gradients = torch.empty_like(weights)  # a step writes all of them but the zeros at the end of each row
        weights[:, size:], gradients[:, size:] = 0, 0
        for name, view in named_views(weights, shapes, transposed).items():
            view.copy_(starts[name])
        grain = GRAIN if context.device.type == "cuda" else (1, 1)
        batches = pad([indices for indices, _ in plans], -1, grain)
        masks = None
        if plans[0][1] is not None:
            masks = pad([mask for _, mask in plans if mask is not None], 0.0, grain)
        return Cohort(
            shapes=shapes,
            transposed=transposed,
            size=size,
            weights=weights,
            gradients=gradients,
            momenta=torch.zeros_like(weights) if work.momentum else None,
            starts=weights.clone() if needs_starts(work) else None,
            noised=torch.zeros_like(weights) if work.ascent and work.record else None,
            batches=torch.where(batches >= 0, batches, context.blank),
            counts=(batches >= 0).sum(2),
            masks=masks,
            steps=torch.tensor([len(indices) for indices, _ in plans], device=context.device),
            longest=max(len(indices) for indices, _ in plans),
            step=torch.zeros(1, dtype=torch.int64, device=context.device),
            rate=weights.new_tensor([work.learning_rate]),
            divisors=weights.new_tensor(divisors),
            keys=keys,
            losses=weights.new_zeros(clients),
        )

    @cached_property
    def named(self) -> dict[str, Tensor]:
        """name -> (K, ...), views of `weights`."""
        return named_views(self.weights, self.shapes, self.transposed)

    @cached_property
    def named_gradients(self) -> dict[str, Tensor]:
        """name -> (K, ...), views of `gradients`."""
        return named_views(self.gradients, self.shapes, self.transposed)

    def batch(self, context: TrainingContext) -> Batch:
        """The batch of the step to take."""
        if self.step.is_cpu:  # asking which step it is costs nothing here, and views no copies
            step = int(self.step)
            batches, counts, masks = self.batches[step], self.counts[step], self.masks
            return Batch(*context.records(batches), counts, None if masks is None else masks[step])
        x, labels = context.records(self.batches.index_select(0, self.step)[0])
        mask = None if self.masks is None else self.masks.index_select(0, self.step)[0]
        return Batch(x, labels, self.counts.index_select(0, self.step)[0], mask)


def named_views(rows: Tensor, shapes: dict[str, torch.Size], transposed: frozenset[str]) -> dict[str, Tensor]:
    """Views of a (K, row) matrix: name -> (K, ...)."""
    views, first = {}, 0
    for name, shape in shapes.items():
        part = rows[:, first : first + prod(shape)]
        views[name] = part.view(len(rows), *reversed(shape)).mT if name in transposed else part.view(len(rows), *shape)
        first += prod(shape)
    return views


def pad(tensors: Sequence[Tensor], fill: float, grain: tuple[int, int]) -> Tensor:
    """K tensors (steps, batch, ...) as one (S, K, B, ...), the most steps and largest batch rounded up to the grain."""
    steps, batch = (-(-max(t.shape[axis] for t in tensors) // grain[axis]) * grain[axis] for axis in (0, 1))
    if all(t.shape[:2] == (steps, batch) for t in tensors):
        return torch.stack(list(tensors), 1)
    shape = (steps, len(tensors), batch, *tensors[0].shape[2:])
    out = torch.full(shape, fill, dtype=tensors[0].dtype, device=tensors[0].device)
    for k, t in enumerate(tensors):
        out[: t.shape[0], k, : t.shape[1]] = t
    return out

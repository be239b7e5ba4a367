"""A cohort in training: K models as the rows of one matrix, their batches, and how far they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.context import TrainingContext
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


@dataclass
class Cohort:
    """All that a step reads and writes, in place, so that a step can be captured and replayed.

    Attributes:
        shapes: name -> shape of one client's parameter.
        turned: names of matrices that lie transposed in their rows.
        size: entries of a model; rows are a little longer, so that each begins at a multiple of 16 bytes.
        weights, gradients, momenta, starts, noised: (K, row); noised is the gradient of the step before. The last three
            are `weights` again where nobody asks for them.
        batches: (steps, K, B) places of records; counts: (steps, K) how many of B are real, the real ones first.
        masks: (steps, K, B, units) or none.
        steps: (K,) how many steps each client takes, `longest` at most; step: (1,) how many were taken.
        rate: (1,) eta; divisors: (K,) what a noised sum is divided by; keys: (K,) of the noise, where it has keys.
        losses: (K,) summed over steps.
    """

    shapes: dict[str, torch.Size]
    turned: frozenset[str]
    size: int
    weights: Tensor
    gradients: Tensor
    momenta: Tensor
    starts: Tensor
    noised: Tensor
    batches: Tensor
    counts: Tensor
    masks: Tensor | None
    steps: Tensor
    longest: int
    step: Tensor
    rate: Tensor
    divisors: Tensor
    keys: Tensor
    losses: Tensor

    @staticmethod
    def of(
        starts: Weights,
        context: TrainingContext,
        plans: Sequence[tuple[Tensor, Tensor | None]],
        divisors: Sequence[float],
        work: Work,
        turned: frozenset[str] = frozenset(),
    ) -> "Cohort":
        """plans: each client's (steps, batch) places with -1 for none, and masks, as Place.plan gives them."""
        clients, shapes = len(plans), {name: w.shape[1:] for name, w in starts.items()}
        size = sum(map(prod, shapes.values()))
        weights = torch.zeros(clients, -(-size // 4) * 4, dtype=context.dtype, device=context.device)
        for name, view in named(weights, shapes, turned).items():
            view.copy_(starts[name])
        grain = GRAIN if context.device.type == "cuda" else (1, 1)
        batches = pad([places for places, _ in plans], -1, grain)
        masks = None
        if plans[0][1] is not None:
            masks = pad([mask for _, mask in plans if mask is not None], 0.0, grain)
        return Cohort(
            shapes=shapes,
            turned=turned,
            size=size,
            weights=weights,
            gradients=torch.zeros_like(weights),
            momenta=torch.zeros_like(weights) if work.momentum else weights,
            starts=weights.clone() if work.proximal or work.outside or work.radius is not None else weights,
            noised=torch.zeros_like(weights) if work.ascent and work.record else weights,
            batches=torch.where(batches >= 0, batches, context.blank),
            counts=(batches >= 0).sum(2),
            masks=masks,
            steps=torch.tensor([len(places) for places, _ in plans], device=context.device),
            longest=max(len(places) for places, _ in plans),
            step=torch.zeros(1, dtype=torch.int64, device=context.device),
            rate=weights.new_tensor([work.learning_rate]),
            divisors=weights.new_tensor(divisors),
            keys=torch.zeros(clients, dtype=torch.int64, device=context.device),
            losses=weights.new_zeros(clients),
        )

    @cached_property
    def named(self) -> dict[str, Tensor]:
        """name -> (K, ...), the rows of `weights` cut into parameters."""
        return named(self.weights, self.shapes, self.turned)

    @cached_property
    def named_gradients(self) -> dict[str, Tensor]:
        return named(self.gradients, self.shapes, self.turned)

    def batch(self, context: TrainingContext) -> Batch:
        """The records of the step to take."""
        if self.step.is_cpu:  # asking which step it is costs nothing here, and views no copies
            step = int(self.step)
            batches, counts, masks = self.batches[step], self.counts[step], self.masks
            return Batch(*context.records(batches), counts, None if masks is None else masks[step])
        x, labels = context.records(self.batches.index_select(0, self.step)[0])
        mask = None if self.masks is None else self.masks.index_select(0, self.step)[0]
        return Batch(x, labels, self.counts.index_select(0, self.step)[0], mask)

    def take_step(self, work: Work, noise: Tensor | None) -> None:
        """One step of SGD by those who are not done; noise: (K, size) standard normals."""
        g = self.gradients
        if noise is not None:
            assert work.record is not None
            noise = noise.mul_(work.record.noise_multiplier * work.record.clip)
            parts = torch.split(noise, [prod(shape) for shape in self.shapes.values()], 1)
            for view, part in zip(self.named_gradients.values(), parts, strict=True):
                view += part.view_as(view)
            g /= self.divisors[:, None]
        if work.only is not None:
            for name, view in self.named_gradients.items():
                if name not in work.only:
                    view.zero_()
        if work.record and work.ascent:
            self.noised.copy_(g)
        if work.proximal:
            g.add_(self.weights - self.starts, alpha=work.proximal)
        if work.outside:
            moved = self.weights - self.starts
            g.add_(moved * (row_norms(moved) > work.outside_radius), alpha=work.outside)
        if work.momentum:
            g = self.momenta.mul_(work.momentum).add_(g)
        self.weights.addcmul_(g, torch.where(self.step < self.steps, self.rate, 0.0)[:, None], value=-1.0)
        if work.radius is not None:
            moved = self.weights - self.starts
            norms = row_norms(moved)
            nearer = self.starts + moved * (work.radius / norms.clamp_min(1e-30))
            self.weights.copy_(torch.where(norms > work.radius, nearer, self.weights))

    def climb(self, work: Work) -> Tensor:
        """Go to the worst point nearby; returns the weights to come back to."""
        before = self.weights.clone()
        way = self.noised if work.record else self.gradients
        if work.only is not None and not work.record:
            for name, view in self.named_gradients.items():
                if name not in work.only:
                    view.zero_()
        self.weights.add_(way * (work.ascent / row_norms(way).clamp_min(1e-30)))
        return before

    def result(self) -> dict[str, Tensor]:
        """The trained weights, apart from the matrix."""
        return {name: w.clone(memory_format=torch.contiguous_format) for name, w in self.named.items()}


def row_norms(rows: Tensor) -> Tensor:
    """(K, 1) norms; filling is zero."""
    return rows.norm(dim=1, keepdim=True)


def named(rows: Tensor, shapes: dict[str, torch.Size], turned: frozenset[str]) -> dict[str, Tensor]:
    """Views of (K, row) by name."""
    views, first = {}, 0
    for name, shape in shapes.items():
        part = rows[:, first : first + prod(shape)]
        views[name] = part.view(len(rows), *reversed(shape)).mT if name in turned else part.view(len(rows), *shape)
        first += prod(shape)
    return views


def pad(tensors: Sequence[Tensor], fill: float, grain: tuple[int, int]) -> Tensor:
    """(steps, batch, ...) tensors of different lengths as one (most steps, K, largest batch, ...), in multiples."""
    steps, batch = (-(-max(t.shape[axis] for t in tensors) // grain[axis]) * grain[axis] for axis in (0, 1))
    if all(t.shape[:2] == (steps, batch) for t in tensors):
        return torch.stack(list(tensors), 1)
    shape = (steps, len(tensors), batch, *tensors[0].shape[2:])
    out = torch.full(shape, fill, dtype=tensors[0].dtype, device=tensors[0].device)
    for k, t in enumerate(tensors):
        out[: t.shape[0], k, : t.shape[1]] = t
    return out

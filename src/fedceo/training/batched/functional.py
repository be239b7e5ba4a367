"""Gradients of K clients at once for any module that torch.func can batch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedceo.tasks import Task
from fedceo.tensors.weights import Weights
from fedceo.training.batched.cohort import Batch
from fedceo.training.batched.products import Product
from fedceo.training.per_example import clipped_sum


@dataclass(frozen=True)
class Functional:
    """The gradients that Chain computes, by automatic differentiation.

    Attributes:
        most_bytes: the memory that gradients of single records may take at a time under record privacy.
    """

    model: nn.Module
    task: Task
    most_bytes: int

    def gradient(
        self,
        weights: Weights,
        batch: Batch,
        clips: Tensor | None,
        out: Weights,
        only: frozenset[str] | None = None,
        take: Callable[[Product], None] | None = None,
    ) -> Tensor:
        """See Chain.gradient; nothing is left as a product."""
        fixed = {name: w for name, w in weights.items() if only is not None and name not in only}
        weights = {name: w for name, w in weights.items() if name not in fixed}
        x, labels, mask = batch.x, batch.labels, batch.mask
        present, fractions = batch.present, batch.fractions
        if clips is None:
            return self._mean(weights, fixed, batch, out)
        size = sum(w.numel() * w.element_size() for w in weights.values())  # of one record of each client
        at_once = max(1, self.most_bytes // size)
        losses = torch.zeros_like(fractions[:, 0])
        for o in out.values():
            o.zero_()
        for first in range(0, x.shape[1], at_once):
            here = slice(first, first + at_once)
            masks = None if mask is None else mask[:, here]
            each = vmap(self._clipped, in_dims=(0, 0 if fixed else None, 0, 0, None if mask is None else 0, 0, 0))
            sums, found = each(dict(weights), fixed, x[:, here], labels[:, here], masks, present[:, here], clips)
            losses += (found * fractions[:, here]).sum(1)
            for name, total in sums.items():
                out[name].add_(total)
        return losses

    def _mean(self, weights: Weights, fixed: Weights, batch: Batch, out: Weights) -> Tensor:
        x, labels, mask = batch.x, batch.labels, batch.mask
        leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
        logits = vmap(self._logits, in_dims=(0, 0, None if mask is None else 0))(leaves | dict(fixed), x, mask)
        each = self.task.loss(logits.flatten(0, 1), labels.flatten(0, 1), "none").view(labels.shape[:2])
        losses = (each * batch.fractions).sum(1)
        # Clients share nothing, so the gradient of the sum of their losses holds the gradient of each.
        found = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
        for name, g in zip(leaves, found, strict=True):
            out[name].copy_(g)
        return losses.detach()

    def _clipped(
        self, weights: Weights, fixed: Weights, x: Tensor, y: Tensor, mask: Tensor | None, present: Tensor, clip: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """One client's sum of clipped gradients, and the (B,) losses of its records."""

        def loss(weights: Weights, x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
            logits = self._logits({**fixed, **weights}, x[None], None if mask is None else mask[None])
            return self.task.loss(logits, y[None])

        axes = (None, 0, 0, None if mask is None else 0)
        gradients, losses = vmap(grad_and_value(loss), in_dims=axes)(dict(weights), x, y, mask)
        return clipped_sum(gradients, present, clip), losses

    def _logits(self, weights: Weights, x: Tensor, mask: Tensor | None) -> Tensor:
        return functional_call(self.model, dict(weights), (x,) if mask is None else (x, mask))

"""The whole cohort as one program: every step trains one batch of every client at once (torch.func).

Clients of different sizes are padded: a record that is not there has weight 0, a client that is done takes no step.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from fedceo.training.per_example import clipped_sum, draw_noise
from fedceo.training.work import Place, Trained, Weights, Work


class BatchedTrainer:
    """SGD on K stacked models at once."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def train(self, starts: Weights, clients: Sequence[int], round_: int, work: Work) -> Trained:
        place = self.place
        place.model.train()
        plans = [place.plan(client, round_, work) for client in clients]
        steps = torch.tensor([len(batches) for batches, _ in plans], device=place.device)
        everybody = min(len(batches) for batches, _ in plans)  # steps in which nobody is done yet
        batches = _pad([batches for batches, _ in plans], fill=-1).to(place.device)
        masks = None
        if plans[0][1] is not None:
            masks = _pad([mask for _, mask in plans if mask is not None], fill=0.0).to(place.device)
        noise = [place.schedule.generator("record noise", round_, client) for client in clients]
        expected = torch.tensor([place.expected_batch(client, work) for client in clients], dtype=place.dtype)

        weights = {name: w.to(place.device, place.dtype, copy=True) for name, w in starts.items()}
        momenta = {name: torch.zeros_like(w) for name, w in weights.items()}
        losses = torch.zeros(len(clients), dtype=place.dtype, device=place.device)
        mask_axis = None if masks is None else 0
        stacked = getattr(place.model, "forward_stacked", None)
        logits_of = stacked or vmap(self._logits, in_dims=(0, 0, mask_axis))
        private = None
        if work.record:
            private = vmap(partial(self._private_step, clip=work.record.clip), in_dims=(0, 0, 0, 0, mask_axis))
        for step in range(batches.shape[1]):
            places = batches[:, step]
            present = (places >= 0).to(place.dtype)
            mask = None if masks is None else masks[:, step]
            inputs, labels = place.records(places.clamp_min(0))
            if private:
                gradients, loss = private(weights, inputs, labels, present, mask)
                gradients = self._noised(gradients, noise, expected, work)
            else:
                # Clients share nothing, so the gradient of the sum of their losses holds the gradient of each.
                leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
                logits = logits_of(leaves, inputs, mask)
                each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(present)
                loss = (each * present).sum(1) / present.sum(1).clamp_min(1.0)
                gradients = dict(
                    zip(
                        leaves,
                        torch.autograd.grad(
                            loss.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
                        ),
                        strict=True,
                    )
                )
                loss = loss.detach()
            active = (step < steps).to(place.dtype)
            losses += loss * active / steps
            for name, w in weights.items():
                if work.momentum:
                    gradients[name] = momenta[name].mul_(work.momentum).add_(gradients[name])
                if step < everybody:
                    w.sub_(gradients[name], alpha=work.learning_rate)
                else:
                    rate = (active * work.learning_rate).view(-1, *(1,) * (w.ndim - 1))
                    w.addcmul_(gradients[name], rate, value=-1.0)
        return Trained(weights, losses)

    def _logits(self, weights: Weights, x: Tensor, mask: Tensor | None) -> Tensor:
        return functional_call(self.place.model, dict(weights), (x,) if mask is None else (x, mask))

    def _private_step(
        self, weights: Weights, x: Tensor, y: Tensor, present: Tensor, mask: Tensor | None, *, clip: float
    ) -> tuple[dict[str, Tensor], Tensor]:
        def loss(weights: Weights, x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
            return F.cross_entropy(self._logits(weights, x[None], None if mask is None else mask[None]), y[None])

        axes = (None, 0, 0, None if mask is None else 0)
        gradients, losses = vmap(grad_and_value(loss), in_dims=axes)(dict(weights), x, y, mask)
        mean = (losses * present).sum() / present.sum().clamp_min(1.0)
        return clipped_sum(gradients, present, clip), mean

    def _noised(
        self, sums: Weights, noise: list[np.random.Generator], expected: Tensor, work: Work
    ) -> dict[str, Tensor]:
        assert work.record is not None
        std = work.record.noise_multiplier * work.record.clip
        extra = [draw_noise({name: s[k] for name, s in sums.items()}, std, noise[k]) for k in range(len(noise))]
        out = {}
        for name, total in sums.items():
            divisor = expected.to(total.device).view(-1, *(1,) * (total.ndim - 1))
            out[name] = (total + torch.stack([e[name] for e in extra])) / divisor
        return out


def _pad(tensors: list[Tensor], fill: float) -> Tensor:
    """Stack (steps, batch, ...) tensors of different lengths into (K, most steps, largest batch, ...)."""
    steps, batch = (max(t.shape[axis] for t in tensors) for axis in (0, 1))
    out = torch.full((len(tensors), steps, batch, *tensors[0].shape[2:]), fill, dtype=tensors[0].dtype)
    for k, t in enumerate(tensors):
        out[k, : t.shape[0], : t.shape[1]] = t
    return out

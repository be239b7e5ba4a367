"""One client after another: any model, any device. The oracle for every faster trainer."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from fedceo.training.per_example import clipped_sum, draw_noise
from fedceo.training.work import Place, Trained, Weights, Work


class LoopTrainer:
    """Plain SGD, step by step, client by client."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def train(self, starts: Weights, clients: Sequence[int], round_: int, work: Work) -> Trained:
        weights, losses = [], []
        for k, client in enumerate(clients):
            trained, loss = self._train_client({name: w[k] for name, w in starts.items()}, client, round_, work)
            weights.append(trained)
            losses.append(loss)
        return Trained({name: torch.stack([w[name] for w in weights]) for name in starts}, torch.stack(losses))

    def _train_client(self, start: Weights, client: int, round_: int, work: Work) -> tuple[dict[str, Tensor], Tensor]:
        place = self.place
        batches, masks = place.plan(client, round_, work)
        noise = place.schedule.generator("record noise", round_, client)
        weights = {name: w.to(place.device, place.dtype, copy=True) for name, w in start.items()}
        momenta = {name: torch.zeros_like(w) for name, w in weights.items()}
        losses = []
        place.model.train()
        # A user's own model may draw from torch's global stream; it gets one of its own for this client and round.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(place.schedule.number("dropout", round_, client))
            for step, row in enumerate(batches):
                real = row[row >= 0].to(place.device)
                x, y = place.records(real)
                mask = None if masks is None else masks[step, : len(real)].to(place.device)
                if work.record is None:
                    gradients, loss = self._gradient(weights, x, y, mask)
                else:
                    gradients, loss = self._private_gradient(weights, x, y, mask, work)
                    std = work.record.noise_multiplier * work.record.clip
                    for name, extra in draw_noise(weights, std, noise).items():
                        gradients[name] = (gradients[name] + extra) / place.expected_batch(client, work)
                for name, w in weights.items():
                    momenta[name].mul_(work.momentum).add_(gradients[name])
                    w.sub_(momenta[name], alpha=work.learning_rate)
                losses.append(loss)
        return weights, torch.stack(losses).mean()

    def _loss(self, weights: Weights, x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
        arguments = (x,) if mask is None else (x, mask)
        return F.cross_entropy(functional_call(self.place.model, dict(weights), arguments), y)

    def _gradient(
        self, weights: Weights, x: Tensor, y: Tensor, mask: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
        loss = self._loss(leaves, x, y, mask)
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, gradients, strict=True)), loss.detach()

    def _private_gradient(
        self, weights: Weights, x: Tensor, y: Tensor, mask: Tensor | None, work: Work
    ) -> tuple[dict[str, Tensor], Tensor]:
        assert work.record is not None
        if len(x) == 0:
            return {name: torch.zeros_like(w) for name, w in weights.items()}, x.new_zeros(())

        def one(weights: Weights, x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
            return self._loss(weights, x[None], y[None], None if mask is None else mask[None])

        axes = (None, 0, 0, None if mask is None else 0)
        gradients, losses = vmap(grad_and_value(one), in_dims=axes, randomness="different")(dict(weights), x, y, mask)
        present = torch.ones(len(x), dtype=x.dtype, device=x.device)
        return clipped_sum(gradients, present, work.record.clip), losses.mean()

"""A client that trains on one record, as an attacker who knows model, weights and learning rate can compute it.

Divided by the learning rate, the update of such a client is g = (w_start - w_trained) / eta: the gradient itself after
one step, the sum of the velocities after several. `Sender.update` is g as a differentiable function of the record,
and nothing else is needed for an attack.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedceo.tensors.weights import Weights


@dataclass(frozen=True)
class Sender:
    """A one-record client.

    Attributes:
        model: a module that returns logits.
        weights: the weights from which the client starts, name -> (...).
        learning_rate: eta.
        steps: the number of local steps on the record.
        momentum: the momentum of the client's SGD.
    """

    model: nn.Module
    weights: Weights
    learning_rate: float = 1.0
    steps: int = 1
    momentum: float = 0.0

    def gradient(self, weights: Weights, x: Tensor, label: Tensor) -> dict[str, Tensor]:
        """The gradient of the cross-entropy of one record; x: (*shape), label: (classes,) probabilities."""

        def loss(weights: Weights) -> Tensor:
            logits = functional_call(self.model, dict(weights), (x.unsqueeze(0),))
            return -(label * F.log_softmax(logits[0], 0)).sum()

        return grad(loss)(dict(weights))

    def update(self, x: Tensor, label: Tensor) -> dict[str, Tensor]:
        """The update g of one record, name -> (...)."""
        weights, velocity = dict(self.weights), self.gradient(self.weights, x, label)
        total = velocity
        for _ in range(self.steps - 1):
            weights = {name: w - self.learning_rate * velocity[name] for name, w in weights.items()}
            fresh = self.gradient(weights, x, label)
            velocity = {name: self.momentum * v + fresh[name] for name, v in velocity.items()}
            total = {name: sum_ + velocity[name] for name, sum_ in total.items()}
        return total

    def updates(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The updates g of many clients of one record each: x (B, *shape), labels (B, classes) -> name -> (B, ...)."""
        return vmap(self.update)(x, labels)

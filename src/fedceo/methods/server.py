"""The server's optimiser between the mean update and the model: none, or momentum or Adam (Reddi et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedceo.experiment.sections import MOMENTUM
from fedceo.lazy import torch
from fedceo.tensors.weights import Weights

ADAM_BETAS = (MOMENTUM, 0.99)
ADAM_FLOOR = 1e-3

Moments = Mapping[str, Mapping[str, "torch.Tensor"]]
"""The optimiser's memory: kind of moment -> name of the parameter -> tensor."""


@dataclass(frozen=True)
class Server:
    """The server's optimiser.

    Attributes:
        optimizer: sgd | momentum | adam.
        learning_rate: the step that is already in the uploads; an optimiser takes it out and applies it itself.
    """

    optimizer: str = "sgd"
    learning_rate: float = 1.0

    def apply(self, weights: Weights, mean: Weights, moments: Moments) -> tuple[dict[str, torch.Tensor], Moments]:
        """The model moved to the mean, and the moments after it; parameters that nobody sent stay as they are."""
        if self.optimizer == "sgd" or not self.learning_rate:
            return {**weights, **mean}, moments
        update = {name: (w - weights[name]) / self.learning_rate for name, w in mean.items()}
        move, changed = self._move(update, moments)
        moved = {name: weights[name] + self.learning_rate * m for name, m in move.items()}
        return {**weights, **moved}, {**moments, **changed}

    def _move(
        self, update: Weights, moments: Moments
    ) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, torch.Tensor]]]:
        zeros = {name: torch.zeros_like(u) for name, u in update.items()}
        before, second_before = moments.get("first", zeros), moments.get("second", zeros)
        if self.optimizer == "momentum":
            first = {name: MOMENTUM * before[name] + u for name, u in update.items()}
            return first, {"first": first}
        one, two = ADAM_BETAS
        counted = moments.get("count", {name: u.new_zeros(()) for name, u in update.items()})
        counts = {name: count + 1 for name, count in counted.items()}  # of rounds with an update, for the bias
        first = {name: one * before[name] + (1 - one) * u for name, u in update.items()}
        second = {name: two * second_before[name] + (1 - two) * u.square() for name, u in update.items()}
        move = {
            name: first[name] / (1 - one**count) / ((second[name] / (1 - two**count)).sqrt() + ADAM_FLOOR)
            for name, count in counts.items()
        }
        return move, {"first": first, "second": second, "count": counts}

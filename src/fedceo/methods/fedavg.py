"""FedAvg (McMahan et al. 2017); with distributed noise UDP-FedAvg, Algorithm 1 of Li et al. (ICML 2025).

The server may put an optimiser between the mean update and the model (Reddi et al. 2021).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedceo.methods.method import State, Weights, repeat
from fedceo.privacy.mechanisms import Uploads

MOMENTUM = 0.9
ADAM_BETAS = (0.9, 0.99)
ADAM_FLOOR = 1e-3


class FedAvg:
    """Everybody starts from the global model; the global model becomes the mean of the uploads."""

    needs_stack = False

    def __init__(self, optimizer: str = "sgd", learning_rate: float = 1.0) -> None:
        """learning_rate: the step that is already in the uploads; an optimiser takes it out and applies it itself."""
        self.optimizer = optimizer
        self.learning_rate = learning_rate

    def smooths(self, round_: int) -> bool:
        return False

    def starts(self, state: State, clients: Sequence[int], round_: int) -> dict[str, Tensor]:
        return repeat(state.weights, len(clients))

    def idle(self, state: State) -> State:
        return state

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        mean = uploads.mean()
        if self.optimizer == "sgd":
            return State(mean), {}
        update = {name: (mean[name] - w) / self.learning_rate for name, w in state.weights.items()}
        move, server = self._move(update, state)
        return State({name: w + self.learning_rate * move[name] for name, w in state.weights.items()}, {}, server), {}

    def _move(self, update: Weights, state: State) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
        zeros = {name: torch.zeros_like(u) for name, u in update.items()}
        first, second = state.server.get("first", zeros), state.server.get("second", zeros)
        if self.optimizer == "momentum":
            first = {name: MOMENTUM * first[name] + u for name, u in update.items()}
            return first, {"first": first}
        one, two = ADAM_BETAS
        counts = state.server.get("count", {name: u.new_zeros(()) for name, u in update.items()})
        counts = {name: count + 1 for name, count in counts.items()}  # of rounds with an update, for the bias
        first = {name: one * first[name] + (1 - one) * u for name, u in update.items()}
        second = {name: two * second[name] + (1 - two) * u.square() for name, u in update.items()}
        move = {
            name: first[name] / (1 - one**count) / ((second[name] / (1 - two**count)).sqrt() + ADAM_FLOOR)
            for name, count in counts.items()
        }
        return move, {"first": first, "second": second, "count": counts}

"""FedAvg (McMahan et al. 2017); with distributed noise UDP-FedAvg, Algorithm 1 of Li et al. (ICML 2025).

The server may put an optimiser between the mean update and the model (Reddi et al. 2021). Most other methods are FedAvg
with another answer to one of its questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedceo.mechanisms.base import Uploads
from fedceo.methods.method import Contribution, State, Statistics
from fedceo.tensors.weights import Weights, repeat
from fedceo.training.work import Work

MOMENTUM = 0.9
ADAM_BETAS = (0.9, 0.99)
ADAM_FLOOR = 1e-3


@dataclass(frozen=True)
class Server:
    """What the server does with the mean update.

    Attributes:
        optimizer: sgd | momentum | adam.
        learning_rate: the step that is already in the uploads; an optimiser takes it out and applies it itself.
    """

    optimizer: str = "sgd"
    learning_rate: float = 1.0

    def apply(self, state: State, mean: Weights) -> State:
        """The state with its model moved to the mean; parameters that nobody sent stay as they are."""
        if self.optimizer == "sgd" or not self.learning_rate:
            return State(state.weights | dict(mean), state.personal, state.server)
        update = {name: (w - state.weights[name]) / self.learning_rate for name, w in mean.items()}
        move, server = self._move(update, state)
        moved = {name: state.weights[name] + self.learning_rate * m for name, m in move.items()}
        return State(state.weights | moved, state.personal, state.server | server)

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


class FedAvg:
    """Everybody starts from the global model; the global model becomes the mean of the uploads."""

    needs_stack = False

    def __init__(self, server: Server | None = None) -> None:
        self.server = server or Server()

    def smooths(self, round_: int) -> bool:
        return False

    def starts(self, state: State, clients: Sequence[int], round_: int) -> dict[str, Tensor]:
        return repeat(state.weights, len(clients))

    def statistics(self, round_: int) -> Statistics | None:
        return None

    def phases(self, work: Work) -> Sequence[Work]:
        return (work,)

    def contribution(self, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Contribution:
        return Contribution(passes[0], passes[-1])

    def global_model(self, state: State) -> Weights:
        return state.weights

    def personal_clients(self, state: State) -> Sequence[int] | None:
        return None

    def personalise(self, state: State, clients: Sequence[int], round_: int) -> dict[str, Tensor]:
        return self.starts(state, clients, round_ + 1)

    def idle(self, state: State) -> State:
        return state

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        return self.server.apply(state, uploads.mean()), {}

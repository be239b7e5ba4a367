"""The seam: what a method is asked in a round. It draws no noise and trains nothing itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from fedceo import config
from fedceo.privacy.mechanisms import Uploads

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class State:
    """All that a method remembers from round to round; it travels with the checkpoint.

    Attributes:
        weights: the global model, which is what is evaluated.
        personal: models kept for single clients, by client number (or by place in the cohort).
        server: further tensors of the server's own, such as an optimiser's moments, by kind.
    """

    weights: dict[str, Tensor]
    personal: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    server: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def placed_like(self, weights: Weights) -> "State":
        """The same on that model's device and with its order of names, which sums and noise follow."""

        def place(model: Weights) -> dict[str, Tensor]:
            return {name: model[name].to(w.device) for name, w in weights.items()}

        personal = {client: place(model) for client, model in self.personal.items()}
        return State(place(self.weights), personal, {kind: place(tensors) for kind, tensors in self.server.items()})

    def flatten(self) -> dict[str, Tensor]:
        """Every tensor under one name, for a file."""
        flat = {f"global/{name}": w for name, w in self.weights.items()}
        for client, model in self.personal.items():
            flat |= {f"personal/{client}/{name}": w for name, w in model.items()}
        for kind, tensors in self.server.items():
            flat |= {f"server/{kind}/{name}": w for name, w in tensors.items()}
        return flat

    @staticmethod
    def unflatten(flat: Weights) -> "State":
        """Undo `flatten`."""
        state = State({})
        for key, tensor in flat.items():
            kind, _, rest = key.partition("/")
            if kind == "global":
                state.weights[rest] = tensor
                continue
            place, _, name = rest.partition("/")
            if kind == "personal":
                state.personal.setdefault(int(place), {})[name] = tensor
            else:
                state.server.setdefault(place, {})[name] = tensor
        return state


class Method(Protocol):
    """One method; `needs_stack` says whether it must see each client's upload or only the mean."""

    needs_stack: bool

    def smooths(self, round_: int) -> bool:
        """Whether the round ends with a smoothing, which shows more than an average where models are personal."""

    def starts(self, state: State, clients: Sequence[int], round_: int) -> dict[str, Tensor]:
        """What each client of the cohort trains from: name -> (K, ...)."""

    def idle(self, state: State) -> State:
        """The state after a round in which nobody reported: the global model as it was."""

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        """The state after the round, and what the round's record should say of it."""


def repeat(weights: Weights, clients: int) -> dict[str, Tensor]:
    """One model for each of K clients, without copying it."""
    return {name: w.expand(clients, *w.shape) for name, w in weights.items()}


def stack(models: Sequence[Weights]) -> dict[str, Tensor]:
    """K models as one: name -> (K, ...)."""
    return {name: torch.stack([model[name] for model in models]) for name in models[0]}


def make_method(settings: config.FedAvg | config.FedCEO, train: config.Train) -> Method:
    """The method that an experiment's [method] table names."""
    from fedceo.methods.fedavg import FedAvg
    from fedceo.methods.fedceo import FedCEO

    if isinstance(settings, config.FedCEO):
        return FedCEO(settings)
    return FedAvg(train.server_optimizer, train.server_learning_rate)

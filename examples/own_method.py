"""A method of your own: FedAvg with another answer to one of its questions, under the accounting of all the others.

python examples/own_method.py
"""

from typing import Any

import torch

import fedceo
from fedceo.methods import FedAvg, Settings, State, Uploads


class ServerMomentum(FedAvg):
    """The mean update with a momentum of its own. It never sees single uploads, so the rows of averages hold."""

    class Settings(Settings):
        beta: float = 0.5

    settings: Settings

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        before = state.server.get("momentum", {name: torch.zeros_like(w) for name, w in state.weights.items()})
        moved = {
            name: self.settings.beta * before[name] + w - state.weights[name] for name, w in uploads.mean().items()
        }
        weights = {name: w + moved[name] for name, w in state.weights.items()}
        moving = sum(float(m.square().sum()) for m in moved.values()) ** 0.5
        return State(weights, state.personal, {"momentum": moved}), {"moving": moving}  # for the round's record


class Median(FedAvg):
    """The median of the uploads in every entry. It needs each of them, so no row but the server's is claimed."""

    needs_stack = True

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        return self.server.apply(state, {name: w.median(0).values for name, w in uploads.weights.items()}), {}


if __name__ == "__main__":
    for name in ("fedavg", "__main__:ServerMomentum", "__main__:Median"):  # in an experiment file: own_method:Median
        run = fedceo.run(
            {
                "data": {"name": "digits", "clients": 50},
                "cohort": {"size": 25},
                "train": {"rounds": 10, "local_epochs": 5, "batch_size": 16},
                "privacy": {"mechanism": "distributed", "noise_multiplier": 2.0},
                "method": {"name": name},
            },
        )
        rows = ", ".join(f"{row['observer']} {row['epsilon']}" for row in run.result["privacy"])
        print(f"{name}: test accuracy {run.result['accuracy']['last']:.3f}, epsilon: {rows}")

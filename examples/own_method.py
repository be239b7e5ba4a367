"""A method of your own, under the accounting of all the others.

python examples/own_method.py
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import fedceo
from fedceo.methods import MethodSettings, OwnMethod, Uploads
from fedceo.training.work import Work


class SlowDown(OwnMethod):
    """Momentum at the server and a pull at home. It never sees single uploads, so the rows of averages hold."""

    class Settings(MethodSettings):
        beta: float = 0.5
        pull: float = 0.01

    def local(self, work: Work) -> Work:
        return replace(work, proximal=self.settings.pull)

    def aggregate(
        self, weights: dict[str, Tensor], uploads: Uploads, memory: dict[str, Tensor], round_: int
    ) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
        for name, mean in uploads.mean().items():
            before = memory.get(name, torch.zeros_like(mean))
            memory[name] = self.settings.beta * before + (1 - self.settings.beta) * (mean - weights[name])
        speed = sum(float(m.square().sum()) for m in memory.values()) ** 0.5
        return {name: w + memory[name] for name, w in weights.items()}, {"speed": speed}


class Median(OwnMethod):
    """The median of the uploads in every entry. It needs each of them, so no row but the server's is claimed."""

    needs_stack = True

    def aggregate(
        self, weights: dict[str, Tensor], uploads: Uploads, memory: dict[str, Tensor], round_: int
    ) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
        return {name: w.median(0).values for name, w in uploads.weights.items()}, {}


if __name__ == "__main__":
    for name in ("fedavg", "__main__:SlowDown", "__main__:Median"):  # in an experiment file: own_method:Median
        run = fedceo.run(
            {
                "data": {"name": "digits", "clients": 50},
                "cohort": {"size": 25},
                "train": {"rounds": 10, "local_epochs": 5, "batch_size": 16},
                "privacy": {"mechanism": "distributed", "noise_multiplier": 2.0},
                "method": {"name": name},
            },
        )
        rows = ", ".join(f"{row['observer']} {row['epsilon'] or 'none'}" for row in run.result["privacy"])
        print(f"{name}: test accuracy {run.result['accuracy']['last']:.3f}, epsilon: {rows}")

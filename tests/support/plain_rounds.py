"""Rounds of federated learning written out in plain torch, float64, to hold methods against.

Clients train with one full batch a step (batch_size above all sizes), so that a round can be written in a few lines.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

import fedceo
from fedceo.experiment.file import parse_experiment
from fedceo.simulation.preparing import prepare
from fedceo.simulation.rounds import Simulation
from fedceo.simulation.spending import planned_rows
from tests.support.small_federation import SIZES, SmallConv, federation

Model = dict[str, Tensor]
CLIP, RATE, EPOCHS = 0.3, 0.2, 3
EVERYBODY = range(len(SIZES))
HEAD = ("fc.weight", "fc.bias")
"""The last layer of the model, which some methods keep at home."""


def table(method: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    """One round of a method without noise, or with fields of some sections changed."""
    base: dict[str, dict[str, Any]] = {
        "data": {"name": "digits"},
        "cohort": {"size": len(SIZES)},
        "train": {
            "rounds": 1, "local_epochs": EPOCHS, "batch_size": 100, "learning_rate": RATE, "precision": "float64",
            "server_learning_rate": 0.7,
        },
        "privacy": {"mechanism": "distributed", "clip": CLIP, "noise_multiplier": 0.0},
        "method": method,
    }  # fmt: skip
    return {name: base.get(name, {}) | sections.get(name, {}) for name in base | sections}


def run(method: dict[str, Any], engine: str = "loop", **sections: dict[str, Any]) -> fedceo.Run:
    """The library's run of that table, on the small federation in float64."""
    data = federation()
    data = type(data)(**{**data.__dict__, "x": data.x.double(), "test_x": data.test_x.double()})
    sections["train"] = {"engine": engine} | sections.get("train", {})
    return fedceo.run(table(method, **sections), data=data, model=model())


def simulated(method: dict[str, Any], engine: str, rounds: int = 3, **sections: dict[str, Any]) -> Simulation:
    """A run of a method without noise, in float64, whose state can be looked at."""
    sections["train"] = {"rounds": rounds, "engine": engine} | sections.get("train", {})
    data = federation()
    data = replace(data, x=data.x.double(), test_x=data.test_x.double())
    simulation = prepare(parse_experiment(table(method, **sections)), data, model())
    while simulation.round < rounds:
        simulation.step()
    return simulation


def mean_of(models: list[Model]) -> Model:
    return {name: torch.stack([each[name] for each in models]).mean(0) for name in models[0]}


def model() -> SmallConv:
    torch.manual_seed(5)
    return SmallConv()


def start() -> Model:
    """The weights that every client begins with."""
    return {name: p.detach().double() for name, p in model().named_parameters()}


def gradient(weights: Mapping[str, Tensor], client: int) -> Model:
    """The gradient of the mean loss over all records of a client."""
    data, module = federation(), model().double()
    leaves = {name: w.detach().clone().requires_grad_() for name, w in weights.items()}
    positions = data.train[client]
    loss = F.cross_entropy(
        functional_call(module, leaves, (data.inputs(data.x[positions].double(), torch.float64),)), data.y[positions]
    )
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def norm(update: Mapping[str, Tensor]) -> Tensor:
    return torch.sqrt(sum((u**2).sum() for u in update.values()))  # type: ignore[arg-type]


def clipped(update: Model, clip: float = CLIP) -> Model:
    factor = min(1.0, clip / float(norm(update)))
    return {name: factor * u for name, u in update.items()}


def difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Model:
    return {name: a[name] - b[name] for name in a}


def nothing(weights: Model) -> Model:
    return {name: torch.zeros_like(w) for name, w in weights.items()}


def descend(
    weights: Model, client: int, steps: int = EPOCHS, rate: float = RATE, names: tuple[str, ...] | None = None,
    extra: Callable[[Model], Model] = nothing,
) -> Model:  # fmt: skip
    """Steps of gradient descent on one client, for the named parameters; extra: a term added to each gradient."""
    for _ in range(steps):
        g, more = gradient(weights, client), extra(weights)
        weights = {
            name: w - rate * (g[name] + more[name]) if names is None or name in names else w
            for name, w in weights.items()
        }
    return weights


def server(updates: list[Model], step: float = 0.7) -> Model:
    """w + step * mean of the updates, for the parameters that were sent."""
    mean = {name: torch.stack([u[name] for u in updates]).mean(0) for name in updates[0]}
    return {name: w + step * mean.get(name, torch.zeros_like(w)) for name, w in start().items()}


def close(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> bool:
    """Whether all wanted tensors are there, up to rounding in float64."""
    return all(torch.allclose(found[name], w, rtol=1e-9, atol=1e-11) for name, w in wanted.items())


def epsilons(method: dict[str, Any], mechanism: str) -> dict[str, float | None]:
    """The epsilons of outsider, participant and server that four rounds of a method promise."""
    privacy = {"mechanism": mechanism, "clip": 1.0, "noise_multiplier": 2.0}
    experiment = parse_experiment(table(method, privacy=privacy, train={"rounds": 4, "batch_size": 4}))
    return {row.observer: row.epsilon for row in planned_rows(experiment, list(SIZES))[:3]}

"""Experiments of a few rounds on the small federation, and uploads to try a method on."""

from typing import Any

import torch

from fedceo.experiment.file import Experiment, parse_experiment
from fedceo.mechanisms.uploads import Stack
from fedceo.models import build_model, parameters_of
from fedceo.models.mlp import MLP
from fedceo.simulation.rounds import Simulation
from tests.support.small_federation import federation


def experiment(method: dict[str, Any], **changes: dict[str, Any]) -> Experiment:
    """Four rounds of a method, or with fields of some sections changed."""
    table: dict[str, dict[str, Any]] = {
        "data": {"name": "small", "clients": 4},
        "cohort": {"size": 3},
        "train": {"rounds": 4, "local_epochs": 2, "batch_size": 4, "server_learning_rate": 0.5},
        "privacy": {"mechanism": "distributed", "noise_multiplier": 1.0, "clip": 0.7},
        "evaluation": {"every": 1},
        "method": method,
    }
    for section, fields in changes.items():
        table[section] = table.get(section, {}) | fields
    return parse_experiment(table)


def simulate(settings: Experiment, rounds: int) -> Simulation:
    """That experiment on the small federation after some rounds."""
    model = build_model("mlp", (1, 4, 4), 3, seed=1)
    simulation = Simulation(settings, federation(), model, "mlp", settings.privacy.noise_multiplier or 0.0)
    for _ in range(rounds):
        simulation.step()
    return simulation


def stacked(m: int = 5) -> Stack:
    """Uploads of clients 10, 11, ... that lie around one model."""
    torch.manual_seed(0)
    common = parameters_of(MLP((16,), 3))
    weights = {name: w + 0.05 * torch.randn(m, *w.shape) for name, w in common.items()}
    return Stack(weights, tuple(range(10, 10 + m)), torch.ones(m, dtype=torch.float64), 0)

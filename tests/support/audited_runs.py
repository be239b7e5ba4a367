"""Small simulations for the audit, and what an audit refuted."""

from typing import Any

import torch
from torch import nn

from fedceo.audit.report import Report
from fedceo.experiment.file import parse_experiment
from fedceo.simulation.rounds import Simulation
from tests.support.small_federation import SmallConv, federation

K, ROUNDS = 10, 160
FEDAVG = {"name": "fedavg"}


def simulation(
    mechanism: str = "distributed",
    method: dict[str, Any] = FEDAVG,
    sigma: float = 1.0,
    seed: int = 0,
    model: nn.Module | None = None,
    cohort: dict[str, Any] | None = None,
    engine: str = "batched",
    train: dict[str, Any] | None = None,
    **privacy: Any,
) -> Simulation:
    table = {
        "seed": seed,
        "data": {"name": "digits", "clients": 12},
        "cohort": {"size": K} | (cohort or {}),
        "train": {"rounds": 20, "local_epochs": 1, "batch_size": 4, "server_learning_rate": 0.5, "engine": engine}
        | (train or {}),
        "privacy": {"mechanism": mechanism, "noise_multiplier": sigma, "clip": 0.5} | privacy,
        "method": method,
    }
    torch.manual_seed(seed)
    return Simulation(parse_experiment(table), federation((6,) * 12), model or SmallConv(), "small", sigma)


def refuted_views(report: Report) -> set[str]:
    return {view.view for view in report.views if view.verdict == "refuted"}

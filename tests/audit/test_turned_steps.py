"""The audit plays local steps in coordinates of a client's records, and finds noise that is missing there."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedceo.audit.report import audit
from fedceo.simulation.rounds import Simulation
from fedceo.training.batched import rotation
from fedceo.training.batched.rotation import Rotation
from fedceo.training.batched.trainer import BatchedTrainer
from fedceo.training.context import TrainingContext
from fedceo.training.noise import RecordNoise, left_of_noise
from tests.support.audited_runs import simulation
from tests.support.linear_models import watched

RIGHT = RecordNoise.draw


def linear(epochs: int = 2) -> Simulation:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    return simulation("record", sigma=0.8, model=model, train={"local_epochs": epochs})


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of clients that are trained in coordinates of records, call by call."""
    return watched(monkeypatch, Rotation, "turn")


def test_right_steps_pass(turned: list[int]) -> None:
    report = audit(linear(), rounds=40, seed=1)
    assert turned and not report.refuted, report


@pytest.mark.parametrize("epochs", [1, 2])
def test_small_clients_go_the_way_that_the_run_s_go(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of one epoch are taken on whole weights here, whatever would be quicker for clients of three records."""
    plays: list[bool] = []
    really = BatchedTrainer._steps

    def steps(self: BatchedTrainer, program: Any, read: TrainingContext, *rest: Any) -> Any:
        plays.append(read.federation.x.ndim == 2)  # in coordinates
        return really(self, program, read, *rest)

    monkeypatch.setattr(BatchedTrainer, "_steps", steps)
    audit(linear(epochs), rounds=4, seed=1)
    assert plays and set(plays) == {epochs > 1}


def weaker_across(*of_the_steps: Any) -> float:
    return 0.8 * left_of_noise(*of_the_steps)


def the_same_across(noise: RecordNoise, step: int, size: int) -> torch.Tensor:
    """Noise along other directions that no two rounds and clients have apart."""
    drawn = RIGHT(noise, step, size)
    if step == 0 and not hasattr(noise, "begun"):
        fixed = torch.from_numpy(np.random.default_rng(0).standard_normal(size)).to(drawn)
        drawn = fixed.expand_as(drawn).clone()
    noise.begun = True  # type: ignore[attr-defined]
    return drawn


def none_along(noise: RecordNoise, step: int, size: int) -> torch.Tensor:
    """No noise in any step, but for that along other directions."""
    drawn = RIGHT(noise, step, size)
    is_first = not hasattr(noise, "begun")
    noise.begun = True  # type: ignore[attr-defined]
    return drawn if is_first else torch.zeros_like(drawn)


FAULTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "weaker across": (rotation, "left_of_noise", weaker_across),
    "the same across": (RecordNoise, "draw", the_same_across),
    "none along": (RecordNoise, "draw", none_along),
}


@pytest.mark.parametrize("name", FAULTS)
def test_missing_noise_is_found(name: str, turned: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[name])
    report = audit(linear(), rounds=80, seed=1)
    assert turned and report.refuted

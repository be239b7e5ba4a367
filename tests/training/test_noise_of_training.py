"""The closed form of the noise that private training leaves in a model, against models that were trained."""

import math
from dataclasses import replace

import pytest
import torch

from fedceo.errors import UsageError
from fedceo.methods.fedceo import FedCEO
from fedceo.models import build_model, parameters_of
from fedceo.training.context import TrainingContext
from fedceo.training.engine import make_trainer
from fedceo.training.noise import noise_of_training
from fedceo.training.schedule import Schedule
from fedceo.training.work import RecordPrivacy, Work
from tests.support.small_experiments import experiment, simulate
from tests.support.small_federation import SIZES, federation

RATE = 0.01
"""So small that gradients hardly answer to the noise."""


@pytest.mark.parametrize("momentum, proximal, steps", [(0, 0, None), (0.5, 0, None), (0.9, 5.0, None), (0.5, 20.0, 3)])
def test_uploads_carry_the_noise_that_the_closed_form_says(momentum: float, proximal: float, steps: int | None) -> None:
    model = build_model("mlp", (1, 4, 4), 3, seed=1)
    context = TrainingContext(model, federation(), Schedule(0, noise_key="a"), torch.device("cpu"), torch.float32)
    trainer = make_trainer(context, "batched")
    starts = {name: w.expand(len(SIZES), *w.shape) for name, w in parameters_of(model).items()}
    quiet = Work(4, 4, RATE, momentum, RecordPrivacy(1.0, 0.0), proximal, steps=steps)
    noisy = replace(quiet, record=RecordPrivacy(1.0, 1.0))
    one, other = (trainer.train(starts, range(len(SIZES)), 1, work).weights for work in (quiet, noisy))
    for client, records in enumerate(SIZES):
        difference = torch.cat([(other[name][client] - one[name][client]).flatten() for name in one])
        assert float(difference.std()) == pytest.approx(noise_of_training(noisy, [records]), rel=0.08)
    squares = [noise_of_training(noisy, [records]) ** 2 for records in SIZES]
    assert noise_of_training(noisy, SIZES) == pytest.approx(math.sqrt(sum(squares) / len(SIZES)))


def test_steps_without_momentum_add_up_as_independent_noises() -> None:
    """sigma C eta / b a step, sqrt(S) times that after S of them; 12 records in batches of 4: three steps an epoch."""
    work = Work(5, 4, 0.1, record=RecordPrivacy(2.0, 3.0))
    assert noise_of_training(work, [12]) == pytest.approx(3.0 * 2.0 * 0.1 / 4 * math.sqrt(15))


def test_a_threshold_by_the_noise_has_the_noise_of_the_servers_step_too() -> None:
    method = {"name": "fedceo", "threshold": "noise", "restart": "mean", "interval": 1}
    settings = experiment(method, privacy={"mechanism": "record"})
    simulation = simulate(settings, 1)
    work = simulation.phases(1)[0]
    assert isinstance(simulation.method, FedCEO) and settings.train.server_learning_rate == 0.5
    expected = 0.5 * noise_of_training(work, SIZES) * math.sqrt(3) * (4 + 8)
    assert simulation.method.filter.threshold((16, 64, 3), 3, 1) == pytest.approx(expected)


def test_noise_that_is_not_known_is_no_threshold() -> None:
    method = {"name": "fedceo", "threshold": "noise"}
    with pytest.raises(UsageError, match=r'^train.schedule: "linear", expected "constant"'):
        experiment(method, privacy={"mechanism": "record"}, train={"schedule": "linear"})
    with pytest.raises(UsageError, match=r'mechanism "none" adds no noise'):
        experiment(method, privacy={"mechanism": "none", "noise_multiplier": None})

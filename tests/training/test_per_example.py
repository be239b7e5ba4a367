"""The record regime against Opacus on the same batch, and the size of its noise."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedceo.models import build_model, parameters_of
from fedceo.training.batched.trainer import BatchedTrainer
from fedceo.training.context import TrainingContext
from fedceo.training.loop import LoopTrainer
from fedceo.training.per_example import clipped_sum, draw_noise
from fedceo.training.schedule import Schedule
from fedceo.training.work import RecordPrivacy, Work
from tests.support.small_federation import SmallConv, federation


@pytest.mark.parametrize("clip", [0.05, 1.0, 100.0])
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_clipped_sums_equal_those_of_opacus(kind: str, clip: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

    torch.manual_seed(0)
    make = (
        SmallConv
        if kind == "conv"
        else lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    )
    model = make()
    data = federation()
    x, y = data.x[:20], data.y[:20]

    theirs = make()
    theirs.load_state_dict(model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = GradSampleModule(theirs)
        optimiser = DPOptimizer(
            torch.optim.SGD(wrapped.parameters(), lr=0.1),
            noise_multiplier=0.0,
            max_grad_norm=clip,
            expected_batch_size=20,
        )
        torch.autograd.backward(F.cross_entropy(wrapped(x), y, reduction="mean"))
        optimiser.clip_and_accumulate()

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(model, weights, (x[None],)), y[None])

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters_of(model), x, y)
    ours = clipped_sum(gradients, torch.ones(20), clip)
    for mine, parameter in zip(ours.values(), theirs.parameters(), strict=True):
        assert torch.allclose(mine, vars(parameter)["summed_grad"], atol=1e-6)


@pytest.mark.parametrize("trainer", [LoopTrainer, BatchedTrainer])
def test_noise_has_the_size_asked(trainer: type[LoopTrainer] | type[BatchedTrainer]) -> None:
    """A step with a vanishing clip is noise alone: its standard deviation is sigma * C / expected batch."""
    model = build_model("mlp", (30, 30), 100, seed=0)
    data = federation(sizes=(10,), shape=(30, 30), classes=100)
    context = TrainingContext(model, data, Schedule(0), torch.device("cpu"), torch.float32)
    start = {name: w[None] for name, w in parameters_of(model).items()}
    clip, sigma, rate = 1e-3, 1e3, 0.5
    work = Work(1, 10, rate, record=RecordPrivacy(clip, sigma))
    trained = trainer(context).train(start, [0], 1, work)
    moved = torch.cat([(trained.weights[name] - w).flatten() for name, w in start.items()])
    assert len(moved) > 60_000
    assert float(moved.std()) == pytest.approx(rate * sigma * clip / 10, rel=0.01)


@pytest.mark.parametrize("trainer", [LoopTrainer, BatchedTrainer])
def test_noise_never_comes_twice(trainer: type[LoopTrainer] | type[BatchedTrainer]) -> None:
    """With a vanishing clip a step is noise alone: clients, steps and rounds must have nothing in common."""
    model = build_model("mlp", (20, 20), 10, seed=0)
    context = TrainingContext(
        model, federation((50, 50), (20, 20), 10), Schedule(0), torch.device("cpu"), torch.float32
    )
    start = {name: w.expand(2, *w.shape) for name, w in parameters_of(model).items()}
    record = RecordPrivacy(1e-4, 1e4)

    def moved(steps: int, round_: int) -> torch.Tensor:
        after = trainer(context).train(start, [0, 1], round_, Work(1, 10, 1.0, record=record, steps=steps)).weights
        return torch.cat([(after[name] - w).flatten(1) for name, w in start.items()], 1).double()

    one, two, other = moved(1, 1), moved(2, 1), moved(1, 2)
    draws = torch.cat([one, two - one, other])
    assert (torch.corrcoef(draws).fill_diagonal_(0).abs() < 5 / draws.shape[1] ** 0.5).all()
    assert torch.allclose(draws.std(1), torch.full((6,), 0.1, dtype=torch.float64), rtol=0.03)


def test_noise_is_one_flat_draw() -> None:
    like = {"a": torch.zeros(3, 2), "b": torch.zeros(4)}
    noise = draw_noise(like, 2.0, np.random.default_rng(0))
    flat = 2.0 * torch.from_numpy(np.random.default_rng(0).standard_normal(10, dtype=np.float32))
    assert torch.equal(torch.cat([noise["a"].flatten(), noise["b"]]), flat)


def test_filling_counts_for_nothing() -> None:
    gradients = {"a": torch.ones(3, 2)}
    assert torch.allclose(clipped_sum(gradients, torch.tensor([1.0, 0.0, 1.0]), 10.0)["a"], torch.tensor([2.0, 2.0]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_counts_as_zero(bad: float) -> None:
    """Else one record could switch the noise of its batch off: the whole update would be NaN and then zero."""
    gradients = {"a": torch.tensor([[1.0, 0.0], [bad, 1.0], [0.0, 1.0]])}
    assert torch.allclose(clipped_sum(gradients, torch.ones(3), 10.0)["a"], torch.tensor([1.0, 1.0]))

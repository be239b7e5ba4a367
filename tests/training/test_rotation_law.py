"""Steps in coordinates of a client's records give models the law that noise on all weights gives them."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from fedceo.training.batched import rotation
from fedceo.training.batched.trainer import BatchedTrainer
from fedceo.training.context import TrainingContext
from fedceo.training.loop import LoopTrainer
from fedceo.training.schedule import Schedule
from fedceo.training.work import RecordPrivacy, Work
from tests.support.linear_models import Deep, context, data, linear
from tests.support.trainers import starts

LOUD = RecordPrivacy(0.5, 2.0)


@pytest.mark.slow
@pytest.mark.parametrize("model", [linear(), Deep()])
def test_models_have_the_law_that_they_have_step_by_step(model: nn.Module) -> None:
    """Along the client's records, across them and in the other layers; the variance and the shape, in many runs."""
    turned, by_steps = ends(model, BatchedTrainer), ends(model, LoopTrainer)
    assert_one_law(turned, by_steps)


@pytest.mark.slow
def test_noise_that_is_missing_in_a_direction_is_another_law(monkeypatch: pytest.MonkeyPatch) -> None:
    by_steps = ends(linear(), LoopTrainer)
    monkeypatch.setattr(rotation, "left_of_noise", lambda *of_the_steps: 0.25)
    with pytest.raises(AssertionError, match="across"):
        assert_one_law(ends(linear(), BatchedTrainer), by_steps)


RUNS = 400


def ends(model: nn.Module, trainer: Callable[[TrainingContext], BatchedTrainer | LoopTrainer]) -> dict[str, Tensor]:
    """What a client's model has moved, (runs, entries), by directions of its first layer, and in the others."""
    some, work = data((5, 12)), Work(3, 3, 0.2, momentum=0.5, proximal=0.5, record=LOUD)
    here = context(model, some)
    begin = {name: w[:1] for name, w in starts(here.model, 1).items()}
    x = here.inputs_of(some.train[0]).flatten(1)
    basis = torch.linalg.qr(torch.cat([x, torch.ones(len(x), 1).double()], 1).T, mode="complete")[0].T
    found: dict[str, list[Tensor]] = {"along": [], "across": [], "others": []}
    for seed in range(RUNS):
        run = replace(here, schedule=Schedule(seed), planned={})
        moved = {name: w[0] - begin[name][0] for name, w in trainer(run).train(begin, [0], 1, work).weights.items()}
        weight, bias, *others = moved.values()
        rows = torch.cat([weight.flatten(1), bias[:, None]], 1) @ basis.T
        found["along"].append(rows[:, : len(x)].flatten())
        found["across"].append(rows[:, len(x) :].flatten())
        found["others"] += [torch.cat([w.flatten() for w in others])] if others else []
    return {name: torch.stack(each) for name, each in found.items() if each}


def assert_one_law(some: dict[str, Tensor], others: dict[str, Tensor]) -> None:
    for name, a in some.items():
        b = others[name]
        ratio = float(a.var(0).mean() / b.var(0).mean())
        assert abs(ratio - 1) < 5 * (4 / a.numel()) ** 0.5 + 0.04, f"{name}: {ratio}"
        worst = min(stats.ks_2samp(a[:, k].numpy(), b[:, k].numpy()).pvalue for k in range(a.shape[1]))
        assert worst > 1e-4 / a.shape[1], name
        correlations = np.corrcoef(a.T.numpy()) - np.corrcoef(b.T.numpy())
        assert np.abs(correlations).max() < 7 * (2 / RUNS) ** 0.5, name

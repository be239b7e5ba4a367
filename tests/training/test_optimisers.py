"""Client optimisers against torch.optim, without privacy and as post-processing of noised gradients."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

import fedceo
from fedceo.training.batched.trainer import BatchedTrainer
from fedceo.training.context import TrainingContext
from fedceo.training.loop import LoopTrainer
from fedceo.training.work import RecordPrivacy, Work
from tests.support.trainers import context, difference, models, starts

Optimiser = Callable[[list[torch.Tensor]], torch.optim.Optimizer]
RATE = 0.01
WORK = Work(epochs=3, batch_size=4, learning_rate=RATE)
OPTIMISERS: dict[str, tuple[Work, Optimiser]] = {
    "sgd, decay": (replace(WORK, weight_decay=0.1), lambda p: torch.optim.SGD(p, RATE, weight_decay=0.1)),
    "sgd, momentum, decay": (
        replace(WORK, weight_decay=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, RATE, momentum=0.9, weight_decay=0.1),
    ),
    "adam": (replace(WORK, optimizer="adam"), lambda p: torch.optim.Adam(p, RATE)),
    "adam, decay": (
        replace(WORK, optimizer="adam", weight_decay=0.1),
        lambda p: torch.optim.Adam(p, RATE, weight_decay=0.1),
    ),
    "adamw": (
        replace(WORK, optimizer="adamw", weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, RATE, weight_decay=0.1),
    ),
}
CLIENTS = [0, 1, 2]


def by_torch(
    where: TrainingContext, start: dict[str, torch.Tensor], client: int, work: Work, optimiser: Optimiser
) -> dict[str, torch.Tensor]:
    """A client's weights by torch.optim on the same batches; under record privacy without clip and noise in effect."""
    weights = {name: w.clone().requires_grad_() for name, w in start.items()}
    steps = optimiser(list(weights.values()))
    batches, masks = where.plan(client, 1, work)
    for number, row in enumerate(batches):
        real = row[row >= 0]
        x, y = where.records(real)
        given = (x,) if masks is None else (x, masks[number, : len(real)])
        losses = F.cross_entropy(functional_call(where.model, weights, given), y, reduction="sum")
        divisor = where.expected_batch(client, work) if work.record else len(real)
        steps.zero_grad()
        (losses / divisor).backward()
        steps.step()
    return {name: w.detach() for name, w in weights.items()}


@pytest.mark.parametrize("trainer", [LoopTrainer, BatchedTrainer])
@pytest.mark.parametrize("record", [None, RecordPrivacy(clip=1e9, noise_multiplier=0.0)], ids=["plain", "record"])
@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("model", ["mlp", "generic"])
def test_steps_are_those_of_torch(name: str, model: str, record: RecordPrivacy | None, trainer: Any) -> None:
    work, optimiser = OPTIMISERS[name]
    work = replace(work, record=record)
    where = context(models()[model], torch.float64)
    start = starts(where.model, len(CLIENTS))
    trained = trainer(where).train(start, CLIENTS, 1, work).weights
    for k, client in enumerate(CLIENTS):
        expected = by_torch(where, {key: w[k] for key, w in start.items()}, client, work, optimiser)
        found = {key: w[k] for key, w in trained.items()}
        assert difference(found, expected) < 1e-10


@pytest.mark.parametrize("trainer", [LoopTrainer, BatchedTrainer])
def test_adam_is_given_the_noised_gradient(trainer: Any) -> None:
    """One step of SGD at rate 1 shows the noised gradient; one of Adam from zero moments is that over its magnitude."""
    where = context(models()["generic"], torch.float64)
    start = starts(where.model, len(CLIENTS))
    work = Work(1, 4, 1.0, record=RecordPrivacy(clip=0.5, noise_multiplier=1.0), steps=1)
    shown = trainer(where).train(start, CLIENTS, 1, work).weights
    moved = trainer(where).train(start, CLIENTS, 1, replace(work, optimizer="adam", learning_rate=RATE)).weights
    for key, w in start.items():
        noised = w - shown[key]
        torch.testing.assert_close(moved[key], w - RATE * noised / (noised.abs() + 1e-8), rtol=1e-6, atol=1e-10)


def test_what_does_not_train_does_not_decay() -> None:
    where = context(models()["generic"], torch.float64)
    start = starts(where.model, len(CLIENTS))
    for optimizer in ("sgd", "adam", "adamw"):
        work = replace(WORK, optimizer=optimizer, weight_decay=0.5, only=frozenset({"out.weight", "out.bias"}))
        for trainer in (LoopTrainer(where), BatchedTrainer(where)):
            trained = trainer.train(start, CLIENTS, 1, work).weights
            assert torch.equal(trained["conv.weight"], start["conv.weight"])
            assert not torch.equal(trained["out.weight"], start["out.weight"])


def test_a_gradient_that_is_sent_is_bare() -> None:
    work = replace(WORK, optimizer="adamw", weight_decay=0.1).one_gradient()
    assert (work.optimizer, work.weight_decay, work.learning_rate) == ("sgd", 0.0, 1.0)


EXPERIMENT: dict[str, Any] = {
    "data": {"name": "digits", "clients": 10},
    "cohort": {"size": 5},
    "model": {"name": "logistic"},
    "train": {"rounds": 2, "local_epochs": 1, "batch_size": 16, "learning_rate": 0.01},
    "privacy": {"mechanism": "record", "noise_multiplier": 1.0},
    "method": {"name": "fedavg"},
}


def test_no_row_depends_on_the_optimiser() -> None:
    runs = [
        fedceo.run(EXPERIMENT | {"train": EXPERIMENT["train"] | {"optimizer": each}}, progress=False)
        for each in ("sgd", "adam", "adamw")
    ]
    assert runs[0].result["privacy"] == runs[1].result["privacy"] == runs[2].result["privacy"]
    assert not torch.equal(runs[0].weights["linear.weight"], runs[1].weights["linear.weight"])


def test_adam_learns() -> None:
    table = EXPERIMENT | {"privacy": {"mechanism": "none"}}
    table["train"] = EXPERIMENT["train"] | {"optimizer": "adam", "rounds": 6, "local_epochs": 5}
    assert fedceo.run(table, progress=False).result["accuracy"]["last"] > 0.85

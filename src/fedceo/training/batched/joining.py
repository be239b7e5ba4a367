"""Cohorts of several runs as rows of one: which runs fit together, and which of their calls are trained at a time.

Rows are joined on a GPU only, where a step of a small model costs its launches and hardly its rows. On a CPU a product
of another padded shape may round differently, and there a run must end on the bits that it ends on alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import nn

from fedceo.data import Federation
from fedceo.training.batched.chain import Chain
from fedceo.training.batched.cohort import Call
from fedceo.training.batched.trainer import BatchedTrainer
from fedceo.training.context import TrainingContext
from fedceo.training.work import Trained, Trainer

DEVICES = {"cuda"}
"""The kinds of device on which cohorts are joined."""


@dataclass(frozen=True)
class Seat:
    """The place of a run among others.

    Attributes:
        trainer: the run's own, or that of a run that it is trained with.
        context: the run's own, but that its records are those of the trainer.
    """

    trainer: Trainer
    context: TrainingContext


def find_seat(trainer: Trainer, context: TrainingContext, others: Sequence[Seat]) -> Seat:
    """A seat beside the first of the others that the run fits, or one alone."""
    for other in others:
        if _may_be_joined(trainer) and _may_be_joined(other.trainer) and _fit(trainer, other.trainer):
            planned = next((each.context.planned for each in others if _draw_alike(context, each.context)), {})
            return Seat(other.trainer, replace(context, ready=other.trainer.context.inputs, planned=planned))
    return Seat(trainer, context)


def _draw_alike(one: TrainingContext, other: TrainingContext) -> bool:
    """Whether two runs draw the same batches and dropout masks, which follow from seed and partition."""
    return one.federation.train is other.federation.train and _drawn_by(one) == _drawn_by(other)


def _drawn_by(context: TrainingContext) -> tuple[int, str]:
    return context.schedule.seed, context.schedule.randomness


def train_all(calls: Sequence[tuple[Trainer, Call]]) -> list[Trained | Exception]:
    """The answers to calls of several runs, in their order; those of one trainer and one kind of work are one cohort.

    Where training a cohort fails, its calls are answered with the error, and the others are trained all the same.
    """
    groups: dict[Any, list[int]] = {}
    for number, (trainer, call) in enumerate(calls):
        groups.setdefault((trainer, call.work.kind), []).append(number)
    answers: dict[int, Trained | Exception] = {}
    for (trainer, _), numbers in groups.items():
        try:
            answers |= zip(numbers, _trained(trainer, [calls[number][1] for number in numbers]), strict=True)
        except Exception as error:
            answers |= dict.fromkeys(numbers, error)
    return [answers[number] for number in range(len(calls))]


def _trained(trainer: Trainer, calls: Sequence[Call]) -> list[Trained]:
    if isinstance(trainer, BatchedTrainer):
        return trainer.train_together(calls)
    return [trainer.train(call.starts, call.clients, call.round_, call.work) for call in calls]


def _may_be_joined(trainer: Trainer) -> TypeGuard[BatchedTrainer]:
    """Whether others may share the trainer; a model that is no chain of known layers may hold more than parameters."""
    if not isinstance(trainer, BatchedTrainer) or trainer.context.device.type not in DEVICES:
        return False
    return isinstance(trainer.program, Chain)


def _fit(one: BatchedTrainer, other: BatchedTrainer) -> bool:
    a, b = one.context, other.context
    alike = (a.device, a.dtype, one.program, _shapes(a.model)) == (b.device, b.dtype, other.program, _shapes(b.model))
    return alike and _same_records(a.federation, b.federation)


def _shapes(model: nn.Module) -> list[tuple[str, torch.Size]]:
    return [(name, p.shape) for name, p in model.named_parameters()]


def _same_records(a: Federation, b: Federation) -> bool:
    """Whether two federations hold the same records, whoever of their clients has them."""
    normalised = (a.x.dtype, a.mean, a.std) == (b.x.dtype, b.mean, b.std)
    pairs = ((a.x, b.x), (a.y, b.y))
    return normalised and all(one is other or torch.equal(one, other) for one, other in pairs)

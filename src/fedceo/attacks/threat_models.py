"""Threat models: what an attacker holds of a client that trains on one record.

T0  the gradient at the model's weights, neither clipped nor noised, of the unnormalised picture: the setting of the
    authors' program, where privacy enters through the weights alone.
T1  the client's upload after one step, as its mechanism lets it out: what a curious server really has.
T2  the client's smoothed model, after the truncated t-SVD over the uploads of its cohort.
T3  the upload after several local steps, by an attacker who knows how many.

Clipping, noise and smoothing are those of the simulation: its own Mechanism and its own method.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from itertools import count

import torch
from torch import Tensor

from fedceo.attacks.sender import Sender
from fedceo.errors import UsageError
from fedceo.mechanisms.uploads import Contribution, Senders, Stack
from fedceo.methods.base import State
from fedceo.simulation.rounds import Simulation
from fedceo.tensors.weights import repeat
from fedceo.training.context import TrainingContext
from fedceo.training.engine import make_trainer
from fedceo.training.work import Work, schedule_factor

DESCRIPTIONS = {
    "T0": "gradient, unclipped and unnoised",
    "T1": "upload after one step",
    "T2": "smoothed model",
    "T3": "upload after several steps",
}
MOST_STEPS = 5
"""Local steps under T3, or as many as train.local_epochs if those are fewer."""

Others = Callable[[int], tuple[Tensor, Tensor]]
"""A function from m to inputs (m, *shape) and labels (m, classes), the records of m other clients."""


def check_holds(holds: str, simulation: Simulation) -> None:
    """Refuse a threat model that cannot occur in this experiment."""
    experiment = simulation.experiment
    if holds not in DESCRIPTIONS:
        raise UsageError(f"--holds: {holds!r}, expected one of {', '.join(DESCRIPTIONS)}")
    if holds == "T0":
        return
    if not simulation.mechanism.shows_uploads:
        mechanism = experiment.privacy.mechanism
        raise UsageError(f'--holds: {holds} is of single uploads, which mechanism "{mechanism}" does not release')
    if experiment.method.keeps_parts:
        name = experiment.method.name
        raise UsageError(
            f"--holds: {holds} needs a method that sends the whole model and remembers nothing, not {name}"
        )
    if holds == "T2" and experiment.method.release_interval is None:
        raise UsageError('--holds: T2 needs method "fedceo" with restart "own", "slot" or "stored"')


def make_sender(simulation: Simulation, holds: str) -> Sender:
    """The attacked client of the next round, at the weights of the simulation as it is."""
    train = simulation.experiment.train
    rate = train.learning_rate * schedule_factor(train.schedule, min(simulation.round + 1, train.rounds), train.rounds)
    steps = min(train.local_epochs, MOST_STEPS) if holds == "T3" else 1
    weights = {name: w.detach() for name, w in simulation.state.weights.items()}
    return Sender(simulation.whole_model.eval(), weights, rate, steps, train.momentum)


def held_updates(
    holds: str, simulation: Simulation, sender: Sender, x: Tensor, labels: Tensor, others: Others
) -> dict[str, Tensor]:
    """Gradients g of n clients as the attacker knows them, name -> (n, ...).

    Args:
        x, labels: (n, *shape) inputs and (n, classes) of the attacked clients, one record each.
        others: gives the records of the rest of a cohort, under T2.
    """
    if holds == "T0":
        return sender.updates(x, labels)
    if holds == "T2":
        each = [_smoothed(simulation, sender, x[k], labels[k], others, k) for k in range(len(x))]
        uploads = {name: torch.stack([model[name] for model in each]) for name in sender.weights}
    else:
        uploads = dict(_uploads(simulation, sender, x, labels, range(len(x))).weights)
    step = sender.learning_rate * simulation.mechanism.step
    return {name: (w - uploads[name]) / step for name, w in sender.weights.items()}


def _uploads(simulation: Simulation, sender: Sender, x: Tensor, labels: Tensor, clients: range) -> Stack:
    """Uploads of clients of one record each in the next round, by the simulation's own trainer and mechanism."""
    starts = {name: w.clone() for name, w in repeat(sender.weights, len(x)).items()}
    t = simulation.round + 1
    work = Work(sender.steps, 1, sender.learning_rate, sender.momentum, simulation.mechanism.local_privacy)
    context = _one_record_clients(simulation, x, labels, clients)
    trained = make_trainer(context, simulation.engine).train(starts, clients, t, work).weights
    senders = Senders(t, tuple(clients), torch.ones(len(x)))
    uploads = simulation.mechanism.privatise(Contribution(starts, trained), senders, sender.weights)
    assert isinstance(uploads, Stack)
    return uploads


def _one_record_clients(simulation: Simulation, x: Tensor, labels: Tensor, clients: range) -> TrainingContext:
    """The simulation's context of training, with clients of these numbers that hold one record each.

    Dropout is left out: the attacker's model of the client has none.
    """
    model = copy(simulation.whole_model)
    if getattr(model, "mask_shape", None) is not None:
        model.mask_shape = None  # type: ignore[assignment]
    nobody = [torch.empty(0, dtype=torch.int64)] * clients.start
    federation = replace(
        simulation.federation.origin,
        x=x,
        y=labels.argmax(1),
        train=[*nobody, *(torch.tensor([k]) for k in range(len(x)))],
        mean=(0.0,),
        std=(1.0,),
    )
    return TrainingContext(model, federation, simulation.schedule, simulation.device, x.dtype)


def _smoothed(
    simulation: Simulation, sender: Sender, x: Tensor, label: Tensor, others: Others, number: int
) -> dict[str, Tensor]:
    """The client's smoothed model, name -> (...), at the next smoothing; it is the first of its cohort.

    A cyclic shift of clients commutes with the truncated t-SVD, so that its position in the cohort is of no matter.
    """
    size, method = simulation.experiment.cohort.size, simulation.method
    other_x, other_labels = others(size - 1)
    clients = range(number * size, (number + 1) * size)  # every cohort has noise of its own
    records = torch.cat([x[None], other_x]), torch.cat([label[None], other_labels])
    uploads = _uploads(simulation, sender, *records, clients)
    round_ = next(t for t in count(simulation.round + 1) if method.smooths(t))
    state, _ = method.aggregate(State(dict(sender.weights)), uploads, round_)
    returned = method.personalise(state, clients, round_)
    return {name: w[0] for name, w in returned.items()}

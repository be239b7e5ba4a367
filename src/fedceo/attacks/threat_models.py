"""What an attacker holds of a client that trains on one record.

T0  the gradient at the model's weights, neither clipped nor noised, of the unnormalised picture: the setting of the
    authors' program, where privacy enters through the weights alone.
T1  the client's upload after one step, as its mechanism lets it out: what a curious server really has.
T2  the client's smoothed model, after the truncated t-SVD over the uploads of its cohort.
T3  the upload after several local steps, by an attacker who knows how many.

Clipping, noise and smoothing are those of the simulation: its own Mechanism and its own method.
"""

from collections.abc import Callable, Sequence
from math import ceil

import torch
from torch import Tensor
from torch.func import vmap

from fedceo.attacks.sender import Sender
from fedceo.errors import UsageError
from fedceo.mechanisms.base import Stack, clip_updates
from fedceo.methods import State
from fedceo.methods.settings import PPSGD, Centaur, FedCEO, JainAnil
from fedceo.simulation.rounds import Simulation
from fedceo.training.per_example import draw_noise
from fedceo.training.work import schedule_factor

DESCRIPTIONS = {
    "T0": "gradient, unclipped and unnoised",
    "T1": "upload after one step",
    "T2": "smoothed model",
    "T3": "upload after several steps",
}
MOST_STEPS = 5
"""Local steps under T3, or as many as train.local_epochs if those are fewer."""

Others = Callable[[int], tuple[Tensor, Tensor]]
"""How many -> inputs (m, *shape) and labels (m, classes) of so many other clients' records."""


def check_holds(holds: str, simulation: Simulation) -> None:
    """Refuse what cannot be held in this experiment."""
    experiment = simulation.experiment
    if holds not in DESCRIPTIONS:
        raise UsageError(f"--holds: {holds!r}, expected one of {', '.join(DESCRIPTIONS)}")
    if holds == "T0":
        return
    if experiment.privacy.mechanism == "central":
        raise UsageError(f'--holds: {holds} is of single uploads, which mechanism "central" does not release')
    if isinstance(experiment.method, PPSGD | Centaur | JainAnil):
        raise UsageError(f"--holds: {holds} needs a method that sends the whole model, not {experiment.method.name}")
    if holds == "T2" and not (isinstance(experiment.method, FedCEO) and simulation.method.needs_stack):
        raise UsageError('--holds: T2 needs method "fedceo" with restart "own", "slot" or "stored"')


def make_sender(simulation: Simulation, holds: str) -> Sender:
    """The attacked client of the next round, at the weights of the simulation as it is."""
    train = simulation.experiment.train
    rate = train.learning_rate * schedule_factor(train.schedule, min(simulation.round + 1, train.rounds), train.rounds)
    steps = min(train.local_epochs, MOST_STEPS) if holds == "T3" else 1
    weights = {name: w.detach() for name, w in simulation.state.weights.items()}
    return Sender(simulation.model.eval(), weights, rate, steps, train.momentum)


def held_updates(
    holds: str, simulation: Simulation, sender: Sender, x: Tensor, labels: Tensor, others: Others
) -> dict[str, Tensor]:
    """g of n clients as the attacker knows it, name -> (n, ...).

    Args:
        x, labels: (n, *shape) inputs and (n, classes) of the attacked clients, one record each.
        others: where the rest of a cohort comes from, under T2.
    """
    if holds == "T0":
        return sender.updates(x, labels)
    if holds == "T2":
        each = [_smoothed(simulation, sender, x[k], labels[k], others, k) for k in range(len(x))]
        uploads = {name: torch.stack([model[name] for model in each]) for name in sender.weights}
    else:
        uploads = _uploads(simulation, sender, x, labels, range(len(x))).weights
    step = sender.learning_rate * simulation.mechanism.step
    return {name: (w - uploads[name]) / step for name, w in sender.weights.items()}


def _uploads(simulation: Simulation, sender: Sender, x: Tensor, labels: Tensor, clients: Sequence[int]) -> Stack:
    starts = {name: w.expand(len(x), *w.shape).clone() for name, w in sender.weights.items()}
    trained = _train(simulation, sender, starts, x, labels, clients)
    return simulation.mechanism.privatise(starts, trained, clients, torch.ones(len(x)), simulation.round + 1)


def _train(
    simulation: Simulation, sender: Sender, starts: dict[str, Tensor], x: Tensor, labels: Tensor, clients: Sequence[int]
) -> dict[str, Tensor]:
    """Local steps of clients of one record each; under record privacy their gradients are clipped and noised."""
    privacy = simulation.experiment.privacy
    noises = [simulation.schedule.generator("record noise", simulation.round + 1, client) for client in clients]
    weights, velocity = starts, {name: torch.zeros_like(w) for name, w in starts.items()}
    for _ in range(sender.steps):
        gradients = vmap(sender.gradient)(weights, x, labels)
        if privacy.mechanism == "record":
            gradients = clip_updates(gradients, privacy.clip)
            for k, generator in enumerate(noises):
                noise = draw_noise(sender.weights, simulation.noise_multiplier * privacy.clip, generator)
                for name, extra in noise.items():
                    gradients[name][k] += extra
        velocity = {name: sender.momentum * v + gradients[name] for name, v in velocity.items()}
        weights = {name: w - sender.learning_rate * velocity[name] for name, w in weights.items()}
    return weights


def _smoothed(
    simulation: Simulation, sender: Sender, x: Tensor, label: Tensor, others: Others, number: int
) -> dict[str, Tensor]:
    """The client's smoothed model, name -> (...), at the next smoothing; it is the first of its cohort.

    A cyclic shift of clients commutes with the truncated t-SVD, so that its place in the cohort is of no matter.
    """
    settings = simulation.experiment.method
    assert isinstance(settings, FedCEO)
    size = simulation.experiment.cohort.size
    other_x, other_labels = others(size - 1)
    clients = range(number * size, (number + 1) * size)  # every cohort has noise of its own
    records = torch.cat([x[None], other_x]), torch.cat([label[None], other_labels])
    uploads = _uploads(simulation, sender, *records, clients)
    round_ = ceil((simulation.round + 1) / settings.interval) * settings.interval
    state, _ = simulation.method.aggregate(State(dict(sender.weights)), uploads, round_)
    return state.personal[0 if settings.restart == "slot" else clients[0]]

"""Canary records in local training under DP-SGD: the experiment's trainer and model, on small clients made for it.

A client holds a real record and, by the toss of a coin, a canary: a real record a hundred times as large under the
label that the model thinks least likely. All of a client's records are in its batch, so that a local step must add
N(0, sigma^2 C^2) to a sum of clipped gradients which the auditor knows: it computes every record's gradient by itself,
one at a time. Amplification by sampled batches is the accountant's matter and not audited. Scores are inner products
with the direction of the canary's gradient; the views are

    step                what one local step uploads; mu = 1 / sigma
    step - peer         less the next client's noise, 1 / (sqrt(2) sigma)
    step - previous     less its own noise of the round before, likewise
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedceo.audit.canaries import Floats, Scores
from fedceo.audit.noise_check import MOST_CLIENTS, Finding, check_along, check_noise, exact_rows
from fedceo.audit.uploads import Claim, Coins
from fedceo.errors import UsageError
from fedceo.training.context import TrainingContext
from fedceo.training.engine import make_trainer
from fedceo.training.work import RecordPrivacy, Work

if TYPE_CHECKING:
    from fedceo.data import Federation
    from fedceo.simulation.rounds import Simulation

RECORDS = 3
"""Records of a client whose noise is checked; a client that may hold a canary has the first of them too."""
CHECKED, WITHOUT, WITH = range(3)
"""The clients that are made for each client of the cohort, in this order."""
CANARY_SCALE = 100.0
SLOW_RATE = 1e-4
"""A learning rate at which the weights stay where they are, so that the gradients of several steps are the first's."""
CHECKED_ROUNDS, CHECKED_STEPS = 2, 2
"""Noise that comes again in the next step shows as a doubled variance over two steps."""
ENOUGH_SCORES, FEWEST_ROUNDS = 8_000, 40
MOST_ENTRIES = 3e8
"""Noise drawn and gradients taken one by one, K D a round."""


class RecordAudit:
    """The audit of DP-SGD inside local training."""

    def __init__(self, simulation: "Simulation", rounds: Iterator[int], rng: np.random.Generator) -> None:
        """rounds: round numbers for the trainer, each used once."""
        self._rounds, self._rng = rounds, rng
        train, self._privacy = simulation.experiment.train, simulation.experiment.privacy
        self._count = min(simulation.experiment.cohort.size, MOST_CLIENTS)
        like = next(iter(simulation.state.weights.values()))
        clients = _canary_clients(simulation.federation, self._count, simulation.model, like)
        self._context = TrainingContext(simulation.model, clients, simulation.schedule, simulation.device, like.dtype)
        self._trainer = make_trainer(self._context, simulation.engine)
        self._weights = simulation.state.weights
        self._gradients: dict[int, Floats] = {}
        entries = sum(w.numel() for w in self._weights.values())
        record = RecordPrivacy(self._privacy.clip, simulation.noise_multiplier)
        self._work = Work(1, RECORDS, train.learning_rate, train.momentum, record)
        self._std = record.noise_multiplier * record.clip
        wanted = min(ENOUGH_SCORES / self._count, MOST_ENTRIES / (self._count * entries))
        self.default_rounds = max(FEWEST_ROUNDS, math.ceil(wanted))
        mu = 1 / record.noise_multiplier
        self.claims = {
            "step": Claim(mu, "server"),
            "step - peer": Claim(mu / 2**0.5, "server"),
            "step - previous": Claim(mu / 2**0.5, "server"),
        }
        if self._count == 1:
            del self.claims["step - peer"]

    def check(self) -> list[Finding]:
        """Is what training adds to the clipped gradients the noise that it claims?"""
        self._refuse_own_randomness()
        work = replace(self._work, epochs=CHECKED_STEPS, learning_rate=SLOW_RATE, momentum=0.0)
        std = self._std * CHECKED_STEPS**0.5
        clients = [CHECKED + 3 * k for k in range(self._count)]
        noise, signals = [], []
        for round_ in (next(self._rounds) for _ in range(CHECKED_ROUNDS)):
            sums = np.stack([self._clipped(client, round_, work, range(RECORDS)).sum((0, 1)) for client in clients])
            signals.append(sums)
            noise.append(self._sums(clients, round_, work) - sums)
        sizes = [w.numel() for w in self._weights.values()]
        all_noise = np.concatenate(noise)
        return [*check_noise(all_noise, std, sizes), check_along("bias", all_noise, np.concatenate(signals), std)]

    def play(self, share: float, rounds: int) -> Scores:
        """Steps with and without canaries; a canary counts whole, whatever the share."""
        scores = Scores()
        before = np.empty(0)
        for turn in range(rounds):
            round_ = next(self._rounds)
            coins = self._rng.random(self._count) < 0.5
            clients = [3 * k + (WITH if coin else WITHOUT) for k, coin in enumerate(coins)]
            known, canaries = self._first_and_canary(coins, round_)
            along = canaries / np.maximum(np.linalg.norm(canaries, axis=1, keepdims=True), np.finfo(float).tiny)
            seen = self._sums(clients, round_, self._work) - known
            noise = seen - canaries * coins[:, None]
            own = np.einsum("kd,kd->k", seen, along)
            scores.add("step", own, coins)
            scores.add("step - peer", own - np.einsum("kd,kd->k", np.roll(noise, -1, 0), along), coins)
            if turn % 2:  # every round in one difference only, or scores would not be independent
                scores.add("step - previous", own - np.einsum("kd,kd->k", before, along), coins)
            before = noise
        return scores

    def _first_and_canary(self, coins: Coins, round_: int) -> tuple[Floats, Floats]:
        """Clipped gradients, (K, D) each, of what a client holds in any case and of its canary."""
        found = []
        for k, coin in enumerate(coins):
            if coin:
                found.append(self._clipped(3 * k + WITH, round_, self._work, [0, 1])[0])
            else:
                first = self._clipped(3 * k + WITHOUT, round_, self._work, [0])
                found.append(np.concatenate([first, self._clipped(3 * k + WITH, round_, self._work, [1])], 1)[0])
        both = np.stack(found)
        return both[:, 0], both[:, 1]

    def _sums(self, clients: Sequence[int], round_: int, work: Work) -> Floats:
        """The noised sums of clipped gradients, (K, D), as an upload shows them; several steps add up."""
        starts = {name: w.expand(len(clients), *w.shape) for name, w in self._weights.items()}
        moved = exact_rows(starts) - exact_rows(self._trainer.train(starts, clients, round_, work).weights)
        batch = np.array([self._context.expected_batch(client, work) for client in clients])
        return moved * (batch / work.learning_rate)[:, None]

    def _clipped(self, client: int, round_: int, work: Work, records: Sequence[int]) -> Floats:
        """Some records' gradients at the start weights, one at a time and then clipped: (steps, records, D)."""
        assert work.record is not None
        batches, masks = self._context.plan(client, round_, work)
        self._context.model.train()
        found = []
        for step, row in enumerate(batches):
            for record in records:
                mask = None if masks is None else masks[step, record : record + 1]
                found.append(self._gradient(int(row[record]), mask))
        gradients = np.stack(found).reshape(len(batches), len(records), -1)
        lengths = np.linalg.norm(gradients, axis=2, keepdims=True)
        return gradients * np.minimum(1.0, work.record.clip / np.maximum(lengths, np.finfo(float).tiny))

    def _gradient(self, record: int, mask: Tensor | None) -> Floats:
        """One record's gradient, (D,); without a mask it is the same in every round."""
        if mask is None and record in self._gradients:
            return self._gradients[record]
        device = self._context.device
        x, y = self._context.records(torch.tensor([record], device=device))
        leaves = {name: w.detach().clone().requires_grad_() for name, w in self._weights.items()}
        arguments = (x,) if mask is None else (x, mask.to(device))
        loss = F.cross_entropy(functional_call(self._context.model, leaves, arguments), y)
        gradient = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        found = torch.cat([g.flatten() for g in gradient]).double().cpu().numpy()
        if mask is None:
            self._gradients[record] = found
        return found

    def _refuse_own_randomness(self) -> None:
        once = self._clipped(CHECKED, 1, self._work, range(RECORDS))
        self._gradients.clear()
        if not np.allclose(once, self._clipped(CHECKED, 1, self._work, range(RECORDS)), rtol=1e-3, atol=1e-6):
            raise UsageError(
                "model: draws random numbers of its own in training, so that no auditor can repeat its gradients; "
                "take them as a mask (see fedceo.models)"
            )


def _canary_clients(federation: "Federation", count: int, model: nn.Module, like: Tensor) -> "Federation":
    """Three clients for each of `count`: one to be checked, one without and one with a canary."""
    places, train = [], []
    for k in range(count):
        mine, first = federation.train[k], k * (RECORDS + 1)
        places.append(mine[torch.arange(RECORDS + 1) % len(mine)])
        train += [torch.arange(first, first + RECORDS), torch.tensor([first]), torch.tensor([first, first + RECORDS])]
    taken = torch.cat(places)
    x, y = federation.inputs(federation.x[taken], like.dtype), federation.y[taken].clone()
    x[RECORDS :: RECORDS + 1] *= CANARY_SCALE
    with torch.no_grad():
        y[RECORDS :: RECORDS + 1] = model.eval()(x[RECORDS :: RECORDS + 1].to(like.device)).argmin(1).cpu()
    return replace(federation, x=x, y=y, train=train, mean=(0.0,), std=(1.0,))

"""Canary records in local training under DP-SGD: the run's method, trainer and model, on small clients made for it.

The real Simulation takes rounds with clients of a few real records. All phases of the method are played, with as many
of their steps as time allows; only the learning rate is so slow that the weights stay where they are, and without
momentum, so that an upload shows the sum of what its steps added. That must be the clipped gradients, which the auditor
computes by itself one record at a time, and noise N(0, sigma^2 C^2) for every step.

Then clients hold a real record and, by the toss of a coin, a canary: a real record a hundred times as large under the
label that the model thinks least likely; all records are in the batch. Scores are inner products with the direction of
the canary's clipped gradient; the views are

    step                what one local step uploads; mu = 1 / sigma
    step - peer         less the next client's noise, 1 / (sqrt(2) sigma)
    step - previous     less its own noise of the round before, likewise
"""

import copy
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedceo.audit.canaries import Floats, Scores
from fedceo.audit.findings import Finding, product_limit, variance_finding
from fedceo.audit.record_gradients import RECORDS, Phase, clipped_gradients, clipped_sums, small_clients
from fedceo.audit.rehearsal import Rehearsal, another_seed
from fedceo.audit.residuals import Residuals
from fedceo.audit.survey import ROLL_CALL, ruler
from fedceo.audit.uploads import Claim, Coins
from fedceo.errors import UsageError
from fedceo.tensors.weights import Weights
from fedceo.training.batched.trainer import BatchedTrainer
from fedceo.training.context import TrainingContext
from fedceo.training.engine import make_trainer
from fedceo.training.work import ALL_RECORDS, Trained, Trainer, Work

if TYPE_CHECKING:
    from fedceo.simulation.rounds import Simulation

HALF_IN = 2
"""The batch size at which a record of three is in a batch with probability 1/2."""
SAME_GRADIENTS = 0.01
"""Relative difference of a model's gradients, taken twice, up to which it draws no random numbers of its own."""
STEP_LENGTH = 3e-5
"""Standard deviation of a step in every entry, so short that the gradients of many steps are the first's."""
MOST_CLIENTS, RULER_CLIENTS = 10, 2
CHECKED_ROUNDS = 6
MOST_CHECKED = 2e7
"""Entries of noise in the roll call."""
FEWEST_EPOCHS = 4
"""Epochs of a round that are always played; no more where dropout masks give a record another gradient in each step."""
MOST_DRAWN = 1e9
"""Normal numbers drawn in all rounds without canaries; epochs for which they would not suffice are not played."""
PHASE_CHECKS = ("variance", "entries", "normality", "bias", "correlation", "lags", "within")
"""What is looked at in the phases after the first."""
ENOUGH_SCORES, FEWEST_ROUNDS = 8_000, 16
MOST_ENTRIES = 3e8
"""Noise drawn and gradients taken one by one, K D a round."""


class SlowTrainer:
    """The run's trainer at a learning rate at which weights stay where they are, and without momentum or Adam.

    Small clients go the way through the trainer that the run's clients go, in coordinates of their records or not.
    """

    def __init__(
        self, trainer: Trainer, run: Trainer, rate: float, batch_size: int, steps: int | None, epochs: int | None
    ) -> None:
        """run: the run's own trainer; batch_size, steps, epochs: instead of the run's; steps and epochs at most."""
        self.trainer, self.rate, self.batch_size, self.steps, self.epochs = trainer, rate, batch_size, steps, epochs
        self.run = run
        self.phases: list[Phase] = []

    def train(self, starts: Weights, clients: Sequence[int], round_: int, work: Work) -> Trained:
        if isinstance(self.trainer, BatchedTrainer) and isinstance(self.run, BatchedTrainer):
            self.trainer.turned = self.run.turns(work)
        size = work.batch_size if work.batch_size == ALL_RECORDS else self.batch_size
        epochs = work.epochs if self.epochs is None else min(work.epochs, self.epochs)
        steps = work.steps if self.steps is None else self.steps
        slow = replace(
            work,
            learning_rate=self.rate,
            momentum=0.0,
            optimizer="sgd",
            weight_decay=0.0,
            ascent=0.0,
            batch_size=size,
            epochs=epochs,
            steps=steps,
        )
        found = self.trainer.train(starts, clients, round_, slow)
        self.phases.append(Phase(starts, tuple(clients), round_, slow, found.weights))
        return found


class RecordAudit:
    """The audit of DP-SGD inside local training."""

    def __init__(self, simulation: "Simulation", rng: np.random.Generator) -> None:
        self._simulation, self._rng = simulation, rng
        self._privacy = simulation.experiment.privacy
        self._count = min(simulation.experiment.cohort.size, MOST_CLIENTS)
        self._entries = sum(w.numel() for w in simulation.state.weights.values())
        affordable = max(self._count, int(MOST_CHECKED / self._entries))
        self._checked = min(simulation.federation.clients, ROLL_CALL, affordable)
        self._std = simulation.noise_multiplier * self._privacy.clip
        self._small = self._small_simulation()
        self._is_seeded = self._privacy.randomness == "seeded"
        self._residuals: dict[int, Residuals] = {}
        self._along: dict[int, list[Floats]] = defaultdict(list)
        self._parts: dict[str, Floats] = {}
        self._between, self._compared = 0.0, 0
        self.not_covered = [
            "momentum, Adam, weight decay and sharpness-aware ascent in local training: steps are played without them"
        ]
        wanted = min(ENOUGH_SCORES / self._count, MOST_ENTRIES / (self._count * self._entries))
        self.default_rounds = max(FEWEST_ROUNDS, math.ceil(wanted))
        mu = 1 / simulation.noise_multiplier
        self.claims = {
            "step": Claim(mu, "server"),
            "step - peer": Claim(mu / 2**0.5, "server"),
            "step - previous": Claim(mu / 2**0.5, "server"),
        }
        if self._count == 1:
            del self.claims["step - peer"]

    @property
    def pooled(self) -> int:
        """Entries by which the variance of the noise is known."""
        return sum(residuals.pooled for residuals in self._residuals.values())

    def findings(self) -> list[Finding]:
        """Is what training adds to the clipped gradients the noise that it claims?"""
        self._refuse_own_randomness()
        clients, train = self._simulation.federation.clients, self._simulation.experiment.train
        rounds = train.rounds
        if self._epochs < train.local_epochs:
            self.not_covered.append(f"noise of the steps after the first {self._epochs} of {train.local_epochs} epochs")
        if self._checked < clients:
            self.not_covered.append(f"noise of the {clients - self._checked} clients after the first {self._checked}")
        if not self._is_seeded:
            self.not_covered.append("whether the trainer takes the batches that were planned: they cannot be repeated")
        some = range(self._count)
        self._look_at(0, [(t, some) for t in range(1, min(CHECKED_ROUNDS, rounds) + 1)])
        if rounds > CHECKED_ROUNDS:
            self._look_at(1, [(t, some[:RULER_CLIENTS]) for t in ruler(rounds)])
        chunks = np.array_split(np.arange(self._checked), max(1, self._checked * self._entries // 10**7))
        self._look_at(2, [(1, chunk.tolist()) for chunk in chunks])
        found: list[Finding] = []
        for phase, residuals in sorted(self._residuals.items()):
            residuals.prefix = f"phase {phase + 1} " if phase else ""
            found += residuals.findings(None if phase == 0 else PHASE_CHECKS)
            found.append(self._along_gradients(phase, residuals.prefix))
        return [*found, *self._between_phases()]

    def _along_gradients(self, phase: int, prefix: str) -> Finding:
        """The variance of the noise where records can be seen, which a few of many entries' directions are."""
        squares = [float(scores @ scores) for scores in self._along[phase] if scores.size]
        degrees = [float(scores.size) for scores in self._along[phase] if scores.size]
        sums, counts = np.array([*squares, sum(squares)]), np.array([*degrees, sum(degrees)])
        seen = counts > 0
        return variance_finding(f"{prefix}along gradients", sums[seen], counts[seen], "that, along records' gradients")

    def _look_at(self, run: int, rounds: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Rounds of one run: their numbers and clients."""
        rehearsal, trainer = self._rehearsal(None if run == 0 else another_seed(self._rng))
        for t, clients in rounds:
            trainer.phases.clear()
            rehearsal.simulation.state = self._simulation.state
            rehearsal.play(rehearsal.entry(t, clients))
            for number, phase in enumerate(trainer.phases):
                self._add(number, phase, rehearsal.simulation.context, run)

    def _add(self, number: int, phase: Phase, context: TrainingContext, run: int) -> None:
        signals = clipped_sums(phase, context, self._privacy.clip)
        noise = (phase.sums(context) - signals.sums) / (self._std * np.sqrt(signals.steps))[:, None]
        self._along[number] += [rows @ row for row, rows in zip(noise, signals.directions, strict=True)]
        if number not in self._residuals:
            self._residuals[number] = Residuals(phase.sizes, self._rng)
        within = [np.zeros(1, dtype=bool)] * len(noise)
        rows = [signal[None] for signal in signals.sums]
        self._residuals[number].add(noise, rows, within, run, phase.round, phase.clients, phase.clients)
        parts = dict(zip(phase.names, np.split(noise, np.cumsum(phase.sizes)[:-1], 1), strict=True))
        for name in parts.keys() & self._parts.keys() if number else ():
            self._between += float((parts[name] * self._parts[name]).sum())
            self._compared += parts[name].size
        self._parts = parts

    def _between_phases(self) -> list[Finding]:
        """Whether two phases of a round that train the same parameters share noise."""
        if not self._compared:
            return []
        ratio = abs(self._between) / float(product_limit(self._compared, 1, 1))
        return [Finding("phases", ratio <= 1, ratio, "at most 1 times what chance explains between two phases")]

    def play(self, share: float, rounds: int) -> Scores:
        """Steps with and without canaries; a canary counts whole, whatever the share."""
        scores, planned = Scores(), self._simulation.experiment.train.rounds
        before: dict[int, Floats] = {}
        for turn in range(rounds):
            t = turn % planned + 1
            if t == 1:
                rehearsal, trainer = self._rehearsal(another_seed(self._rng), with_canaries=True)
            coins = self._rng.random(self._count) < 0.5
            self._hand_out_canaries(rehearsal.simulation, trainer, coins)
            trainer.phases.clear()
            rehearsal.simulation.state = self._simulation.state
            rehearsal.play(rehearsal.entry(t, range(self._checked, self._checked + self._count)))
            for number, phase in enumerate(trainer.phases):
                self._score(number, phase, rehearsal.simulation.context, coins, scores, before)
        return scores

    def _hand_out_canaries(self, played: "Simulation", trainer: SlowTrainer, coins: Coins) -> None:
        """Give the canary to clients whose coin has fallen; whose noise it is must not depend on that."""
        train = list(self._small.federation.train)
        for k, coin in enumerate(coins):
            both = self._small.federation.train[self._checked + k]
            train[self._checked + k] = both if coin else both[:1]
        played.federation = replace(self._small.federation, train=train)
        played.context = replace(played.context, federation=played.federation, ready=played.context.inputs)
        trainer.trainer = make_trainer(played.context, self._simulation.engine)

    def _score(
        self, number: int, phase: Phase, context: TrainingContext, coins: Coins, scores: Scores,
        before: dict[int, Floats],
    ) -> None:  # fmt: skip
        records = torch.cat([self._small.federation.train[self._checked + k] for k in range(self._count)])
        owners = torch.arange(self._count).repeat_interleave(2)
        has_masks = getattr(context.model, "mask_shape", None) is not None
        plans = [context.plan(client, phase.round, phase.work) for client in phase.clients] if has_masks else []
        drawn = [_both_masks(masks) for _, masks in plans if masks is not None]
        known = clipped_gradients(
            phase, context, owners, records, torch.cat(drawn) if drawn else None, self._privacy.clip
        ).reshape(self._count, 2, -1)
        first, canaries = known[:, 0], known[:, 1]
        along = canaries / np.maximum(np.linalg.norm(canaries, axis=1, keepdims=True), np.finfo(float).tiny)
        seen = phase.sums(context) - first
        noise = seen - canaries * coins[:, None]
        own = np.einsum("kd,kd->k", seen, along)
        scores.add("step", own, coins)
        scores.add("step - peer", own - np.einsum("kd,kd->k", np.roll(noise, -1, 0), along), coins)
        earlier = before.pop(number, None)
        if earlier is None:  # every round in one difference only, or scores would not be independent
            before[number] = noise
        else:
            scores.add("step - previous", own - np.einsum("kd,kd->k", earlier, along), coins)

    def _rehearsal(self, seed: int | None, with_canaries: bool = False) -> tuple[Rehearsal, SlowTrainer]:
        """A run of the small clients; with canaries every phase takes one step, and all records are in it."""
        rehearsal = Rehearsal(self._small, self._simulation.trainer, seed)
        context = rehearsal.simulation.context
        batch = HALF_IN if self._is_seeded and not with_canaries else RECORDS
        rate = STEP_LENGTH * RECORDS / self._std
        played, steps = make_trainer(context, self._simulation.engine), 1 if with_canaries else None
        trainer = SlowTrainer(played, self._simulation.trainer, rate, batch, steps, self._epochs)
        rehearsal.simulation.trainer = trainer
        return rehearsal, trainer

    @cached_property
    def _epochs(self) -> int:
        """The most epochs of a round that are played."""
        if getattr(self._simulation.model, "mask_shape", None) is not None:
            return FEWEST_EPOCHS
        planned = self._simulation.experiment.train.rounds
        turns = self._count * min(CHECKED_ROUNDS, planned) + RULER_CLIENTS * len(ruler(planned)) + self._checked
        return max(FEWEST_EPOCHS, int(MOST_DRAWN / (turns * self._entries * RECORDS / HALF_IN)))

    def _refuse_own_randomness(self) -> None:
        context, weights = self._small.context, self._simulation.state.weights
        starts = {name: w[None] for name, w in weights.items()}
        phase = Phase(starts, (0,), 1, self._simulation.phases(1)[0], starts)
        shape, records = getattr(context.model, "mask_shape", None), self._small.federation.train[0]
        masks = None if shape is None else torch.ones(len(records), *shape, dtype=context.dtype)
        owners = torch.zeros(len(records), dtype=torch.int64)
        once, again = (clipped_gradients(phase, context, owners, records, masks, self._privacy.clip) for _ in range(2))
        # a GPU may take another algorithm the second time, whose rounding is smaller than what any dropout changes
        if np.linalg.norm(once - again) > SAME_GRADIENTS * np.linalg.norm(once):
            raise UsageError(
                "model: draws random numbers of its own in training, so that no auditor can repeat its gradients; "
                "take them as a mask (see fedceo.models)"
            )

    def _small_simulation(self) -> "Simulation":
        """The simulation with small clients: those that are checked, then those with canaries."""
        simulation = self._simulation
        like = next(iter(simulation.state.weights.values()))
        small = copy.copy(simulation)
        small.federation = small_clients(simulation.federation, self._checked, self._count, simulation.model, like)
        small.sizes = small.federation.sizes
        small.context = replace(simulation.context, federation=small.federation, ready=None)
        return small


def _both_masks(masks: torch.Tensor) -> torch.Tensor:
    """The dropout masks of a client's record and of its canary in the one step; without a canary any will do for it."""
    return masks[0, :2] if masks.shape[1] > 1 else masks[0].expand(2, *masks.shape[2:])

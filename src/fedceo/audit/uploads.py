"""Canary clients in the rounds of a real run: its shapes, mechanism, method and noise; only the training is replaced.

Scores are inner products with a canary's direction u_j, in units of the clip. Views of one round:

    average             the mean of the uploads, or what the server makes public under central noise
    upload              a canary's own upload
    upload - peer       less the next client's upload, where shared noise would vanish
    upload - previous   less its own upload of the round before (and what it is known to have sent), where repeated
                        noise would vanish; under central noise the same of the averages
    returned            what the client is given to start the next round from after a smoothing (FedCEO)

Claims follow from noise of standard deviation sigma C / sqrt(R) on each upload, R the reports that shares are sized
for: mu = sqrt(R) / sigma of an upload, 1/sqrt(2) of that of a difference, sqrt(R / K) / sigma of the average of K. A
returned model is computed from the stack of uploads and promises no more than they do; with restart "mean" it is
computed from the average.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedceo.accounting.ledger import Ledger
from fedceo.audit.canaries import Canaries, Floats, Scores
from fedceo.audit.noise_check import Finding, check_mechanism
from fedceo.mechanisms.base import noises
from fedceo.mechanisms.uploads import Stack
from fedceo.simulation.round import LocalCohort, plan_round, take_round
from fedceo.tensors.weights import Weights, as_row, as_rows, from_rows
from fedceo.training.schedule import Schedule
from fedceo.training.work import Trained, Work

if TYPE_CHECKING:
    from fedceo.methods.base import State
    from fedceo.simulation.rounds import Simulation

Coins = npt.NDArray[np.bool_]

LARGEST_MU, TILTED_MU = 3.3, 2.0
"""Beyond the first a view is so clear that errors are too rare to count; coins then decide on a share of the canary."""
SCORES_AT_MU_1, FEWEST_SCORES, MOST_SCORES = 7_000, 8_000, 16_000
"""Bounds err by some 1/sqrt(n), so that telling mu from 2 mu takes a number of scores that goes with 1/mu^2."""
FEWEST_ROUNDS = 40
MOST_ENTRIES = 2.8e9
"""Noise drawn in one pass, K D a round: what keeps an audit of a million parameters within minutes."""
SMOOTHING_COST = 10
"""The cost of smoothing an entry, in units of drawing one."""


class Claim(NamedTuple):
    """The promise of one view.

    Attributes:
        mu: that of the whole clip C.
        observer: whose row in the accounting it belongs to.
        share: the part of C that the coin decides on; share * mu is what is tested.
    """

    mu: float
    observer: str
    share: float = 1.0


@dataclass(frozen=True)
class Renumbered(Schedule):
    """The schedule of a run that is played again and again: every round played has a number of its own."""

    schedule: Schedule = field(default_factory=lambda: Schedule(0))
    turn: int = 0

    def generator(self, purpose: str, round_: int = 0, client: int = 0) -> np.random.Generator:
        return self.schedule.generator(purpose, self.turn, client)


class CanaryTrainer:
    """A trainer whose clients move by canaries: in the last phase of a round, and only in what is sent."""

    def __init__(
        self, canaries: Canaries, coins: Coins, share: float, clip: float, shared: Sequence[str], last: Work
    ) -> None:
        self.canaries, self.coins, self.share, self.clip = canaries, coins, share, clip
        self.shared, self.last = shared, last

    def train(self, starts: Weights, clients: Sequence[int], round_: int, work: Work) -> Trained:
        losses = torch.zeros(len(clients))
        if work != self.last:
            return Trained(dict(starts), losses)
        there = {name: starts[name] for name in self.shared}
        rows = as_rows(there)
        moved = rows + self.canaries.updates(self.coins, self.share, self.clip, rows)
        return Trained({**starts, **from_rows(moved, there)}, losses)


class UploadAudit:
    """The audit of a distributed or central mechanism."""

    def __init__(self, simulation: "Simulation", rounds: Iterator[int], rng: np.random.Generator) -> None:
        """rounds: round numbers for the mechanism, each used once."""
        self._simulation, self._rounds, self._rng = simulation, rounds, rng
        self._mechanism, self._method = simulation.mechanism, simulation.method
        self._central = not simulation.mechanism.shows_uploads
        self._clients = list(range(simulation.experiment.cohort.size))
        # as the experiment says and the accounting believes, whatever the mechanism was told
        privacy = simulation.experiment.privacy
        shares = 1 if self._central else privacy.min_reports or len(self._clients)
        z, _ = noises(simulation.experiment, simulation.noise_multiplier)
        self._clip, self._std = privacy.clip, z * privacy.clip / shares**0.5
        self._shared = self._what_is_sent()
        self._canaries = Canaries([w.numel() for w in self._shared.values()], len(self._clients), rng)
        self._calendar = self._rounds_of_a_run()
        self.claims = self._claims()
        cost = self._canaries.entries * len(self._clients) * (1 + SMOOTHING_COST / 2 * ("returned" in self.claims))
        least = min(claim.share * claim.mu for claim in self.claims.values())
        scores = min(max(SCORES_AT_MU_1 / least**2, FEWEST_SCORES), MOST_SCORES)
        wanted = min(scores / self._canaries.count, MOST_ENTRIES / cost)
        self.default_rounds = max(FEWEST_ROUNDS, math.ceil(wanted))

    def check(self) -> list[Finding]:
        """The mechanism taken as a function."""
        return check_mechanism(
            self._mechanism,
            self._shared,
            len(self._clients),
            clip=self._clip,
            std=self._std,
            rounds=self._rounds,
            rng=self._rng,
        )

    def play(self, share: float, rounds: int) -> Scores:
        """Rounds of the run with canaries in place of training; after its last round the run begins anew."""
        scores = Scores()
        state = self._simulation.state
        before = known = np.empty(0)
        for turn in range(rounds):
            place = turn % len(self._calendar)
            state = state if place else self._simulation.state
            coins = self._rng.random(self._canaries.count) < 0.5
            state, own = self._play_round(state, self._calendar[place], coins, share, scores)
            if turn % 2:  # every round in one difference only, or scores would not be independent
                view = "average - previous" if self._central else "upload - previous"
                scores.add(view, own - (before - known), coins)
            before, known = own, share * coins.astype(np.float64)
        return scores

    def _play_round(
        self, state: "State", at: int, coins: Coins, share: float, scores: Scores
    ) -> "tuple[State, Floats]":
        """Round `at` of the run; the state after it, and the scores of the view that repeated noise shows in."""
        canaries, mechanism, clients = self._canaries, self._mechanism, self._clients
        works = self._simulation.phases(at)
        trainer = CanaryTrainer(canaries, coins, share, self._clip, tuple(self._shared), works[-1])
        fresh = replace(mechanism, schedule=self._renumbered(mechanism.schedule))
        entry = plan_round(at, clients, clients, mechanism, self._method, Ledger(repeatable=False), None)
        cohort = LocalCohort(self._method, fresh, trainer, self._simulation.context, works)
        outcome = take_round(state, entry, self._method, cohort)
        assert outcome.collected is not None and outcome.collected.sent is not None
        uploads, sent, unit = outcome.collected.uploads, outcome.collected.sent, mechanism.step * self._clip
        begun = as_rows(sent.start)
        if isinstance(uploads, Stack):
            moved = as_rows(uploads.weights) - begun
            own, peers = canaries.own(moved) / unit, canaries.peers(moved) / unit
            scores.add("average", canaries.common(as_row(uploads.mean()) - begun.mean(0)), coins)
            scores.add("upload", own, coins)
            scores.add("upload - peer", own - peers, coins)
        else:
            origin = {name: state.weights[name] for name in self._shared}
            own = canaries.common(as_row(uploads.weights) - as_row(origin)) * (mechanism.divisor / unit)
            scores.add("average", own, coins)
        if "returned" in self.claims and self._method.smooths(at):
            returned = as_rows(self._method.starts(outcome.state, clients, at + 1))
            scores.add("returned", canaries.own(returned - begun), coins)
        return outcome.state, own

    def _renumbered(self, schedule: Schedule) -> Renumbered:
        return Renumbered(schedule.seed, schedule.randomness, schedule, next(self._rounds))

    def _before_the_last_phase(self, starts: Weights) -> list[Weights]:
        """The models at the start and after all phases but the last, in which canaries stay where they are."""
        return [starts] * len(self._simulation.phases(1))

    def _what_is_sent(self) -> dict[str, Tensor]:
        """The part of the model that leaves a client."""
        state = self._simulation.state
        starts = self._method.starts(state, self._clients, 1)
        sent = self._method.contribution(state, self._clients, [*self._before_the_last_phase(starts), starts])
        return {name: state.weights[name] for name in sent.start}

    def _rounds_of_a_run(self) -> list[int]:
        """The rounds that are played: all, or where a method smooths, the smoothing ones and those right after."""
        every, smooths = range(1, self._simulation.experiment.train.rounds + 1), self._method.smooths
        if not any(smooths(t) for t in every):
            return list(every)
        return [t for t in every if smooths(t) or (t > 1 and smooths(t - 1))]

    def _claims(self) -> dict[str, Claim]:
        upload = self._clip / self._std
        if self._central:
            claims = {"average": Claim(upload, "outsider"), "average - previous": Claim(upload / 2**0.5, "outsider")}
        else:
            claims = {
                "average": Claim(upload / len(self._clients) ** 0.5, "outsider"),
                "upload": Claim(upload, "server"),
                "upload - peer": Claim(upload / 2**0.5, "server"),
                "upload - previous": Claim(upload / 2**0.5, "server"),
            }
        if len(self._clients) == 1:
            claims.pop("upload - peer", None)
        if any(self._method.smooths(t) for t in self._calendar):
            claims["returned"] = Claim(upload, "client") if self._method.needs_stack else claims["average"]
        shares = {observer: self._share(observer, claims) for observer in ("outsider", "server", "client")}
        return {view: claim._replace(share=shares[claim.observer]) for view, claim in claims.items()}

    @staticmethod
    def _share(observer: str, claims: dict[str, Claim]) -> float:
        clearest = max((claim.mu for claim in claims.values() if claim.observer == observer), default=0.0)
        return 1.0 if clearest <= LARGEST_MU else TILTED_MU / clearest

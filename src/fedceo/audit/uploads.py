"""Canary clients in the rounds of a real run with user-level noise: only local training is replaced.

Scores are inner products with a canary's direction u_j, in units of the clip. Views of one round:

    released             the global model after the round
    upload               a canary's own upload
    upload - peer        less the next client's upload, where shared noise would vanish
    upload - previous    less the noise of its own upload before, where repeated noise would vanish; under central
                         noise `mean - previous`, the same of the noised means; where noise is correlated over
                         rounds, both views are of windows of rounds (whitening.py)
    returned             what the client is given to start the next round from after a smoothing (FedCEO)
    returned to others   what others are given then, along its canary

Claims follow from noise of standard deviation sigma C / sqrt(R) on each upload, R the reports that shares are sized
for: mu = sqrt(R) / sigma of an upload, 1/sqrt(2) of that of a difference, sqrt(R / m) / sigma of a model released from
m of them. A returned model is computed from the stack of uploads and promises no more than they do; with restart "mean"
it is computed from the average.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fedceo.accounting.ledger import Ledger
from fedceo.audit.canaries import Canaries, Floats, Scores
from fedceo.audit.rehearsal import Played, Rehearsal, another_seed
from fedceo.audit.whitening import Windows
from fedceo.mechanisms.base import noise_coefficients, noises
from fedceo.mechanisms.uploads import Stack
from fedceo.tensors.weights import Weights, as_row, as_rows, from_rows
from fedceo.training.work import Trained, Work

if TYPE_CHECKING:
    from fedceo.simulation.rounds import Simulation

Coins = npt.NDArray[np.bool_]

LARGEST_MU, TILTED_MU = 3.3, 2.0
"""Beyond the first a view is so clear that errors are too rare to count; coins then decide on a share of the canary."""
SCORES_AT_MU_1, FEWEST_SCORES, MOST_SCORES = 7_000, 8_000, 16_000
"""Bounds err by some 1/sqrt(n), so that telling mu from 2 mu takes a number of scores that goes with 1/mu^2."""
FEWEST_ROUNDS = 16
MOST_ENTRIES = 5e8
"""Noise drawn in one pass, K D a round: what keeps an audit of a million parameters within a minute or so."""
SMOOTHING_COST = 10
"""The cost of smoothing an entry, in units of drawing one."""
MOST_KEPT = 5e7
"""Entries of earlier noise that are kept to be subtracted."""


class Claim(NamedTuple):
    """The promise of one view.

    Attributes:
        mu: that of the whole clip C.
        observer: whose row in the accounting it belongs to.
        share: the part of C that the coin decides on; share * mu is what is tested.
        reports: how many uploads the view is computed from, at least.
    """

    mu: float
    observer: str
    share: float = 1.0
    reports: int = 1


class Earlier(NamedTuple):
    """An upload that the next one of its client is compared with.

    Attributes:
        row: (D,) what it adds to its start, in units of the clip.
        place: the canary that its client was then.
        sent: what it sent along that canary.
    """

    row: torch.Tensor
    place: int
    sent: float


class CanaryTrainer:
    """A trainer whose clients move by canaries: in the last phase of a round, and only in what is sent."""

    def __init__(self, canaries: Canaries, share: float, shared: Sequence[str]) -> None:
        self.canaries, self.share, self.shared = canaries, share, shared
        self.coins: Coins = np.zeros(0, dtype=bool)
        self.clip = 1.0
        self.last: Work | None = None

    def begin(self, coins: Coins, clip: float, last: Work) -> None:
        """coins: of the first canaries of the round, in the order of its clients."""
        self.coins, self.clip, self.last = coins, clip, last

    def train(self, starts: Weights, clients: Sequence[int], round_: int, work: Work) -> Trained:
        losses = torch.zeros(len(clients))
        if work != self.last:
            return Trained(dict(starts), losses)
        there = {name: starts[name] for name in self.shared}
        rows = as_rows(there)
        sent = torch.zeros_like(rows)
        count = min(len(clients), self.canaries.count)
        sent[:count] = self.canaries.updates(self.coins, self.share, self.clip, rows)[:count]
        return Trained({**starts, **from_rows(rows + sent, there)}, losses)


class UploadAudit:
    """The audit of a distributed or central mechanism by canaries."""

    def __init__(self, simulation: "Simulation", rng: np.random.Generator) -> None:
        self._simulation, self._rng = simulation, rng
        self._central = not simulation.mechanism.shows_uploads
        experiment, cohort = simulation.experiment, simulation.experiment.cohort
        # as the experiment says and the accounting believes, whatever the mechanism was told
        privacy = experiment.privacy
        shares = 1 if self._central else privacy.min_reports or cohort.size
        z, _ = noises(experiment, simulation.noise_multiplier)
        self._noise, self._divisor = z / shares**0.5, float(cohort.size)
        self._step = experiment.method.server_step(experiment.train.server_learning_rate)
        self._reports = self._expected_reports()
        self._shared = self._what_is_sent()
        self._canaries = Canaries([w.numel() for w in self._shared.values()], cohort.size, rng)
        self._smoothing = [t for t in range(1, experiment.train.rounds + 1) if simulation.method.smooths(t)]
        self.claims = self._claims()
        entries, clients = self._canaries.entries, cohort.size
        cost = entries * clients * (1 + SMOOTHING_COST / 2 * bool(self._smoothing))
        least = min(claim.share * claim.mu for claim in self.claims.values())
        scores = min(max(SCORES_AT_MU_1 / least**2, FEWEST_SCORES), MOST_SCORES)
        bands = len(noise_coefficients(experiment))  # one round in so many has scores of its own
        wanted = min(bands * scores / self._canaries.count, MOST_SCORES, MOST_ENTRIES / cost)
        self.default_rounds = max(FEWEST_ROUNDS, math.ceil(wanted))

    def play(self, share: float, rounds: int) -> Scores:
        """Rounds with canaries in place of training; after its last round the run begins anew, with another seed."""
        scores, calendar = Scores(), self._calendar()
        windows = self._windows(scores)
        trainer = CanaryTrainer(self._canaries, share, tuple(self._shared))
        before: dict[int, Earlier] = {}
        rehearsal: Rehearsal | None = None
        for turn in range(rounds):
            place = turn % len(calendar)
            if place == 0 or rehearsal is None:
                for view in windows.values():
                    view.begin()
                rehearsal = Rehearsal(self._simulation, trainer, another_seed(self._rng))
            played = rehearsal.simulation
            played.round, played.ledger = calendar[place] - 1, Ledger(repeatable=False)  # nobody is at a cap
            entry = played.draw()
            coins = self._rng.random(self._canaries.count) < 0.5
            trainer.begin(coins, played.clip, played.phases(entry.round)[-1])
            self._score(rehearsal.play(entry), coins, share, scores, before, windows)
        for view in windows.values():
            view.close()
        return scores

    def _windows(self, scores: Scores) -> dict[str, Windows]:
        """The views of central noise, in each of which an update shows for as many rounds as the noise has bands."""
        before: list[Floats] = []

        def released(found: Floats, sent: Floats, fell: Coins) -> None:
            scores.add("released", found[: len(fell)], fell)

        def mean(found: Floats, sent: Floats, fell: Coins) -> None:
            if not before:
                before.append(found - sent)
            else:  # every window in one difference only, or scores would not be independent
                scores.add("mean - previous", (found - before.pop())[: len(fell)], fell)

        coefficients = noise_coefficients(self._simulation.experiment)
        return {"released": Windows(coefficients, released), "mean": Windows(coefficients, mean)}

    def _score(
        self, played: Played, coins: Coins, share: float, scores: Scores, before: dict[int, Earlier],
        windows: dict[str, Windows],
    ) -> None:  # fmt: skip
        found, clients = played.collected, played.entry.reported
        if found is None or found.sent is None or not (clients or self._central):
            return
        canaries, unit = self._canaries, self._step * played.clip
        count = min(len(clients), canaries.count)
        fell = coins[:count]
        begun = as_rows(found.sent.start)
        origin = as_row({name: played.before.weights[name] for name in self._shared})
        released = as_row({name: played.after.weights[name] for name in self._shared})
        of_mean = begun.mean(0) if isinstance(found.uploads, Stack) else origin
        divisor = len(clients) if isinstance(found.uploads, Stack) else self._divisor
        of_released = canaries.common(released - of_mean) * (divisor / unit)
        if not self._central and len(clients) >= self._reports:
            scores.add("released", of_released[:count], fell)
        if isinstance(found.uploads, Stack):
            moved = (as_rows(found.uploads.weights) - begun) / unit
            own = canaries.own(moved)
            scores.add("upload", own, fell)
            if len(clients) > 1:
                scores.add("upload - peer", own - canaries.peers(moved), fell)
            self._previous(clients, moved, own, fell, share, scores, before)
        else:
            row = (as_row(found.uploads.weights) - origin) * (divisor / unit)
            sent = np.zeros(canaries.count)
            sent[:count] = share * fell
            windows["released"].add(of_released, sent, fell, played.entry.round)
            windows["mean"].add(canaries.common(row), sent, fell, played.entry.round)
        if clients and self._smoothing and played.method.smooths(played.entry.round):
            returned = as_rows(played.method.starts(played.after, clients, played.entry.round + 1))
            self._returned(self._of_shared(returned) - begun, fell, scores)

    def _returned(self, moved: torch.Tensor, fell: Coins, scores: Scores) -> None:
        count = len(fell)
        scores.add("returned", self._canaries.own(moved[:count]), fell)
        if len(moved) > 1:
            of_all = self._canaries.common(moved.sum(0))[:count]
            of_others = of_all - self._canaries.own(moved[:count])
            scores.add("returned to others", of_others, fell)

    def _previous(
        self, clients: Sequence[int], moved: torch.Tensor, own: Floats, fell: Coins, share: float, scores: Scores,
        before: dict[int, Earlier],
    ) -> None:  # fmt: skip
        """Scores less the noise of the client's upload before; every upload in one difference only."""
        found, coins = [], []
        for k, client in enumerate(clients):
            earlier = before.pop(client, None)
            if earlier is None:
                before[client] = Earlier(moved[k], k, share * float(fell[k : k + 1].sum()))
            elif k < len(own):
                noise = self._canaries.one(earlier.row, k) - (earlier.sent if earlier.place == k else 0.0)
                found.append(own[k] - noise)
                coins.append(fell[k])
        scores.add("upload - previous", np.array(found), np.array(coins, dtype=bool))
        while len(before) * self._canaries.entries > MOST_KEPT:
            del before[next(iter(before))]

    def _of_shared(self, rows: torch.Tensor) -> torch.Tensor:
        """Of whole models, (m, D), the entries of what is sent."""
        weights = self._simulation.state.weights
        parts = dict(zip(weights, torch.split(rows, [w.numel() for w in weights.values()], 1), strict=True))
        return torch.cat([parts[name] for name in self._shared], 1)

    def _calendar(self) -> list[int]:
        """The rounds that are played: all, or where a method smooths, the smoothing ones and those right after."""
        rounds = self._simulation.experiment.train.rounds
        if not self._smoothing:
            return list(range(1, rounds + 1))
        return sorted({*self._smoothing, *(t + 1 for t in self._smoothing if t < rounds)})

    def _expected_reports(self) -> int:
        """Reports of a round that the claims for the released model speak of; rounds with fewer are not scored."""
        cohort = self._simulation.experiment.cohort
        is_fixed = cohort.sampling == "fixed" and cohort.dropout == 0
        least = self._simulation.experiment.privacy.min_reports or 1
        return cohort.size if is_fixed else max(1, least, int(cohort.size * (1 - cohort.dropout)))

    def _what_is_sent(self) -> dict[str, torch.Tensor]:
        """The part of the model that leaves a client."""
        simulation, state = self._simulation, self._simulation.state
        starts = simulation.method.starts(state, [0], 1)
        passes = [starts] * (len(simulation.phases(1)) + 1)
        return {name: state.weights[name] for name in simulation.method.contribution(state, [0], passes).start}

    def _claims(self) -> dict[str, Claim]:
        upload, everybody = 1 / self._noise, self._simulation.federation.clients
        if self._central:
            claims = {"released": Claim(upload, "outsider"), "mean - previous": Claim(upload / 2**0.5, "outsider")}
        else:
            reports = self._reports
            claims = {
                "released": Claim(upload / reports**0.5, "outsider", reports=reports),
                "upload": Claim(upload, "server"),
                "upload - peer": Claim(upload / 2**0.5, "server"),
                "upload - previous": Claim(upload / 2**0.5, "server"),
            }
        if self._simulation.experiment.cohort.size == 1:
            claims.pop("upload - peer", None)
        if self._smoothing:
            of_stack = self._simulation.method.needs_stack
            claims["returned"] = Claim(upload, "client") if of_stack else claims["released"]
            if of_stack and everybody > 1 and self._simulation.experiment.cohort.size > 1:
                claims["returned to others"] = Claim(upload, "client")
        shares = {observer: self._share(observer, claims) for observer in ("outsider", "server", "client")}
        return {view: claim._replace(share=shares[claim.observer]) for view, claim in claims.items()}

    @staticmethod
    def _share(observer: str, claims: dict[str, Claim]) -> float:
        clearest = max((claim.mu for claim in claims.values() if claim.observer == observer), default=0.0)
        return 1.0 if clearest <= LARGEST_MU else TILTED_MU / clearest

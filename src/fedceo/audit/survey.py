"""The survey of a run with user-level noise: rounds with updates that the auditor knows, everything taken out again.

Three kinds of rounds are played:

    as drawn    the run from its first round, with its own seed and cohorts
    ruler       a few clients in rounds so chosen that every distance between two rounds of the run is among them
    roll call   all clients, in one round of one run, so that any two clients' noise can be compared

The last two belong to runs with other seeds, or noise would rightly come again.
"""

import math
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fedceo.audit.findings import Finding, Floats, variance_finding
from fedceo.audit.rehearsal import KnownTrainer, Played, Rehearsal, another_seed, fresh
from fedceo.audit.residuals import Residuals
from fedceo.audit.server_step import ServerStep
from fedceo.audit.values import value_findings
from fedceo.audit.whitening import Whitening, column_findings
from fedceo.mechanisms.base import noise_coefficients, noises
from fedceo.mechanisms.uploads import Mean, Stack
from fedceo.tensors.weights import Weights, as_row, as_rows

if TYPE_CHECKING:
    from fedceo.simulation.rounds import Simulation

Bools: TypeAlias = npt.NDArray[np.bool_]

MOST_ENTRIES = 3e7
"""Noise drawn in rounds as drawn, K D a round."""
FEWEST_ROUNDS = 6
MOST_TAKEN_AGAIN = 40
"""Rounds whose server step is taken a second and a third time, and as many that smooth."""
RULER_CLIENTS = 2
COUNTS = 400
"""Noised counts of clients within the clip that are looked at."""
ROLL_CALLS_AT_SIGMA_1 = 260
"""Roll calls after which a client that counts twice in a sum is found; half of the updates are beyond the clip."""
ROLL_CALL = 2000
"""Clients whose noise is compared with that of all others."""
CHUNK_ENTRIES = 2e7
RELEASED_CHECKS = ("variance", "bias", "clipping", "memory", "correlation")


class Survey:
    """Plays the rounds and looks at them."""

    def __init__(self, simulation: "Simulation", rng: np.random.Generator) -> None:
        self._simulation, self._rng = simulation, rng
        experiment = simulation.experiment
        privacy, cohort = experiment.privacy, experiment.cohort
        self._is_sum = not simulation.mechanism.shows_uploads
        # as the experiment says and the accounting believes, whatever the mechanism was told
        self._shares = 1 if self._is_sum else privacy.min_reports or cohort.size
        self._divisor = float(cohort.size) if self._is_sum else None
        self._step = experiment.method.server_step(experiment.train.server_learning_rate)
        self._noise, self._count_noise = noises(experiment, simulation.noise_multiplier)
        self._uploads: Residuals | None = None
        self._released: Residuals | None = None
        self._coefficients = noise_coefficients(experiment)
        self._whitenings = Whitening(self._coefficients), Whitening(self._coefficients)
        self._server = ServerStep(self._divisor, rng)
        self._clip = privacy.clip
        self._counts: list[float] = []
        self._unfollowed = 0.0
        self._participations: Counter[int] = Counter()
        self.not_covered: list[str] = []
        self.rounds = 0

    def findings(self) -> list[Finding]:
        """Play, and say what was found."""
        self._as_drawn()
        self._ruler()
        self._roll_call()
        self._enough_counts()
        privacy = self._simulation.experiment.privacy
        found: list[Finding] = []
        if self._uploads is not None and self._uploads.rows:
            found += self._uploads.findings()
        if self._released is not None and self._released.rows:
            found += self._released.findings(RELEASED_CHECKS)
        else:
            self.not_covered.append("the noise of the released model entry by entry: the server's step is not the mean")
        found += self._server.findings()
        if privacy.noise == "banded":
            found += column_findings(self._coefficients, self._simulation.experiment.cohort.groups or 1)
        if privacy.clipping == "adaptive":
            counts = np.array(self._counts)
            found.append(variance_finding("count", np.array([np.square(counts).sum()]), np.array([float(counts.size)])))
            found.append(Finding("clip", self._unfollowed <= 1e-6, self._unfollowed, "0 from what the count says"))
        if privacy.participation_cap is not None:
            most = max(self._participations.values(), default=0)
            within = most <= privacy.participation_cap
            found.append(Finding("cap", within, float(most), f"at most {privacy.participation_cap} rounds of a client"))
        std = self._noise * privacy.clip / self._shares**0.5
        return [*found, *value_findings(self._simulation, self._step * std / (self._divisor or 1.0), self._rng)]

    @property
    def pooled(self) -> int:
        """Entries by which the variance of the noise is known."""
        return 0 if self._uploads is None else self._uploads.pooled

    def _as_drawn(self) -> None:
        experiment, simulation = self._simulation.experiment, self._simulation
        entries = sum(w.numel() for w in simulation.state.weights.values())
        affordable = MOST_ENTRIES / (entries * experiment.cohort.size)
        planned = experiment.train.rounds
        self.rounds = min(planned, max(FEWEST_ROUNDS, int(affordable)))
        if self.rounds < planned:
            self.not_covered.append(f"rounds {self.rounds + 1} to {planned} as drawn (the ruler has their distances)")
        rehearsal = self._rehearsal(None)
        smoothed = [t for t in range(1, planned + 1) if simulation.method.smooths(t)]
        for t in range(1, self.rounds + 1):
            played = rehearsal.play()
            self._look(played, 0)
            self._participations.update(played.moved.keys())
            if t <= MOST_TAKEN_AGAIN or t in smoothed[:MOST_TAKEN_AGAIN]:
                self._take_again(played)

    def _ruler(self) -> None:
        """A sparse ruler: its first rounds one apart, then as far apart as there are first rounds."""
        planned = self._simulation.experiment.train.rounds
        if planned < 3:
            return
        rehearsal = self._rehearsal(another_seed(self._rng))
        first = rehearsal.simulation.draw()
        members = first.cohort or tuple(range(self._simulation.federation.clients))
        least = max(RULER_CLIENTS, self._simulation.mechanism.least_reports)
        if len(members) < least:
            members = tuple(range(min(least, self._simulation.federation.clients)))
        for t in ruler(planned):
            self._look(rehearsal.play(rehearsal.entry(t, members[:least])), 1)

    def _roll_call(self) -> None:
        clients, experiment = self._simulation.federation.clients, self._simulation.experiment
        everybody = np.arange(clients)
        if clients > ROLL_CALL:
            everybody = np.sort(self._rng.choice(clients, ROLL_CALL, replace=False))
            self.not_covered.append(f"noise shared by two clients that are not among {ROLL_CALL} drawn of {clients}")
        entries = sum(w.numel() for w in self._simulation.state.weights.values())
        least = max(2, self._simulation.mechanism.least_reports)
        size = max(least, min(len(everybody), int(CHUNK_ENTRIES / entries)))
        quiet = [t for t in range(1, experiment.train.rounds + 1) if not self._simulation.method.smooths(t)] or [1]
        self._rng.shuffle(quiet)
        chunks = np.array_split(everybody, max(1, len(everybody) // size))
        a_round = 1 if self._is_sum else len(chunks)  # a sum has the noise of its round, whoever is in it
        for turn, chunk in enumerate(chunks * self._roll_calls(len(everybody) * entries)):
            if turn % (a_round * len(quiet)) == 0:
                rehearsal = self._rehearsal(another_seed(self._rng))
            run, at = divmod(turn // a_round, len(quiet))
            self._look(rehearsal.play(rehearsal.entry(quiet[at], chunk.tolist())), 2 + run)

    def _roll_calls(self, cost: int) -> int:
        """How often all clients are called: where there is noise on the sum alone, until each client's weight shows."""
        if not self._is_sum:
            return 1
        wanted = math.ceil(ROLL_CALLS_AT_SIGMA_1 * self._noise**2)
        calls = max(1, min(wanted, int(MOST_ENTRIES / cost)))
        if calls < wanted:
            factor = 1 + math.sqrt(wanted / calls)
            self.not_covered.append(f"a client that counts in the sum for less than {factor:.2g} times its due")
        return calls

    def _enough_counts(self) -> None:
        """Further runs where clipping is adaptive, for a round has one count alone."""
        experiment = self._simulation.experiment
        entries = sum(w.numel() for w in self._simulation.state.weights.values())
        left = int(min(COUNTS - len(self._counts), MOST_ENTRIES / (entries * experiment.cohort.size)))
        if experiment.privacy.clipping != "adaptive":
            return
        for turn in range(left):
            if turn % experiment.train.rounds == 0:
                rehearsal = self._rehearsal(another_seed(self._rng))
            self._look(rehearsal.play(), -1 - turn // experiment.train.rounds)

    def _rehearsal(self, seed: int | None) -> Rehearsal:
        self._clip = self._simulation.experiment.privacy.clip
        return Rehearsal(self._simulation, KnownTrainer(self._rng), seed)

    def _look(self, played: Played, run: int) -> None:
        """Residuals of the uploads and of the released model, and where clipping is adaptive the count."""
        found = played.collected
        if found is None or found.sent is None:
            return
        if played.clip != self._clip:
            self._unfollowed = max(self._unfollowed, abs(played.clip / self._clip - 1))
        start, trained = (as_rows(w).double().cpu().numpy() for w in (found.sent.start, found.sent.trained))
        updates = trained - start
        capped = [k for k, client in enumerate(played.entry.reported) if client in played.entry.capped]
        updates[capped] = 0.0
        signals, beyond = self._clipped(updates, found.sent.start)
        shared = {name: played.before.weights[name] for name in found.sent.start}
        sizes = [w.numel() for w in shared.values()]
        if self._uploads is None:
            self._uploads = Residuals(sizes, self._rng)
            self._released = Residuals(sizes, self._rng, "released ")
        std, clients, t = self._noise * self._clip / self._shares**0.5, played.entry.reported, played.entry.round
        if isinstance(found.uploads, Stack):
            rows = (as_rows(found.uploads.weights).double().cpu().numpy() - start) / self._step - signals
            one = [signal[None] for signal in signals]
            self._uploads.add(rows / std, one, [cut[None] for cut in beyond], run, t, clients, clients)
            divisor, spread, begun = float(len(clients)), std * len(clients) ** 0.5, start.mean(0)
        else:
            assert self._divisor is not None
            divisor, spread, begun = self._divisor, std, as_row(shared).double().cpu().numpy()
            row = (as_row(found.uploads.weights).double().cpu().numpy() - begun) * (divisor / self._step)
            rows = (row - signals.sum(0))[None]
            self._uploads.add(
                self._whitenings[0].whiten(rows / std, run, t), [signals], [beyond], run, t, [-1], clients
            )
        if self._released is not None and self._is_mean(played, shared):
            moved = as_row({n: played.after.weights[n] for n in shared}).double().cpu().numpy() - begun
            row = moved * (divisor / self._step) - signals.sum(0)
            noise = self._whitenings[1].whiten(row[None] / spread, run, t)
            self._released.add(noise, [signals], [beyond], run, t, [-1], clients)
        if self._simulation.experiment.privacy.clipping == "adaptive":
            self._count(played, updates, len(capped))

    def _clipped(self, updates: Floats, like: Weights) -> tuple[Floats, Bools]:
        """By a second implementation: the whole update, or each of m tensors to the clip over sqrt(m)."""
        sizes, bound = [updates.shape[1]], self._clip
        if self._simulation.experiment.privacy.clipping == "per_layer":
            sizes = [w[0].numel() if len(w) else w.shape[1:].numel() for w in like.values()]
            bound = self._clip / math.sqrt(len(sizes))
        parts = np.split(updates, np.cumsum(sizes)[:-1], axis=1)
        lengths = [np.linalg.norm(part, axis=1, keepdims=True) for part in parts]
        factors = [np.minimum(1.0, bound / np.maximum(length, np.finfo(float).tiny)) for length in lengths]
        beyond = np.any(np.hstack(lengths) > bound, axis=1)
        return np.concatenate([part * factor for part, factor in zip(parts, factors, strict=True)], 1), beyond

    def _is_mean(self, played: Played, shared: Weights) -> bool:
        """Whether the method's server step is the mean itself, as a mean of the auditor's own making shows."""
        assert played.collected is not None
        made = {n: w + torch.from_numpy(self._rng.standard_normal(w.shape)).to(w) for n, w in shared.items()}
        method, clients = fresh(played.method), played.entry.reported
        if method.setup.aggregation != "mean":
            return False
        if method.needs_stack:
            rows = {name: w.expand(max(len(clients), 1), *w.shape) for name, w in made.items()}
            uploads: Stack | Mean = Stack(rows, clients, torch.ones(len(clients), dtype=torch.float64), 0)
        else:
            uploads = Mean(made, self._divisor or float(len(clients)), 0)
        after, _ = method.aggregate(played.before, uploads, played.entry.round)
        return all(torch.allclose(after.weights[name], w, rtol=1e-3, atol=1e-3) for name, w in made.items())

    def _count(self, played: Played, updates: Floats, capped: int) -> None:
        """The noise of the count that the clip has really followed, in standard deviations."""
        privacy, clients = self._simulation.experiment.privacy, len(played.entry.reported)
        within = int((np.linalg.norm(updates, axis=1) <= self._clip).sum()) - capped
        votes = within - (clients - capped) / 2
        divisor, shares = (self._divisor, 1.0) if self._divisor else (float(clients), clients / self._shares)
        followed = privacy.clip_quantile - math.log(played.next_clip / self._clip) / privacy.clip_learning_rate
        self._counts.append(((followed - 0.5) * divisor - votes) / (self._count_noise * math.sqrt(shares)))
        assert played.collected is not None and played.collected.uploads.unclipped is not None
        self._unfollowed = max(self._unfollowed, abs(followed - played.collected.uploads.unclipped))
        self._clip = played.next_clip

    def _take_again(self, played: Played) -> None:
        reports = len(played.entry.reported)
        std = self._noise * self._clip / self._shares**0.5
        spread = std / self._divisor if self._divisor else std / max(reports, 1) ** 0.5
        self._server.add(played, spread * self._step)


def ruler(rounds: int) -> list[int]:
    """Rounds from 1 to T among which every distance up to T - 1 occurs, some 2 sqrt(T) of them."""
    width = math.isqrt(rounds - 1) + 1
    marks = {*range(1, width + 1), *range(width, rounds + 1, width), rounds}
    # the last stretch is shorter than the others, so that its distances need the first marks counted from the end
    marks |= set(range(max(1, rounds - width + 1), rounds + 1))
    return sorted(marks)

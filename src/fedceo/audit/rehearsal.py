"""A rehearsal of a run: the real Simulation takes real rounds, and only local training is replaced.

Cohorts, phases, weights, clipping, noise, aggregation, smoothing and what clients are handed are the run's own. The
trainer moves every client by an update with random signs that the auditor knows.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedceo.accounting.ledger import Entry, Ledger
from fedceo.simulation.clock import Clock
from fedceo.simulation.evaluation import Evaluator
from fedceo.simulation.round import Collected, Outcome, plan_round
from fedceo.tensors.weights import Weights, as_row
from fedceo.training.work import Trained, Trainer, Work

if TYPE_CHECKING:
    from fedceo.methods.base import Method, State
    from fedceo.simulation.rounds import Simulation

NORMS = (1e-3, 0.1, 0.9, 1.5, 1e2, 1e4)
"""L2 norms of the updates sent, in units of the clip; half of them are within it."""


class KnownTrainer:
    """A trainer whose clients move by updates that the auditor draws, anew for every client, round and phase.

    An update has random signs. It is as long in every entry, as long in every tensor however small, or in one tensor
    alone, by chance.

    Attributes:
        clip: C, in units of which norms are drawn; to be set before a round.
        norms: the norms to draw from.
        moved: client -> (D,) its whole movement in the round.
        starts: client -> (D,) where it began its first phase.
    """

    def __init__(self, rng: np.random.Generator, norms: Sequence[float] = NORMS) -> None:
        self.rng, self.norms, self.clip = rng, norms, 1.0
        self.moved: dict[int, Tensor] = {}
        self.starts: dict[int, Tensor] = {}

    def begin(self, clip: float) -> None:
        self.clip, self.moved, self.starts = clip, {}, {}

    def train(self, starts: Weights, clients: Sequence[int], round_: int, work: Work) -> Trained:
        names = [name for name in starts if work.only is None or name in work.only]
        begun = torch.cat([w.reshape(len(clients), -1) for w in starts.values()], 1)
        updates = self._updates(len(clients), [starts[name][0].numel() for name in names])
        parts = dict(
            zip(names, np.split(updates, np.cumsum([starts[n][0].numel() for n in names])[:-1], 1), strict=True)
        )
        weights, moved = {}, []
        for name, start in starts.items():
            part = parts.get(name)
            change = torch.zeros_like(start) if part is None else torch.from_numpy(part).to(start).view(start.shape)
            weights[name] = start + change
            moved.append(change.reshape(len(clients), -1))
        rows = torch.cat(moved, 1)
        for k, client in enumerate(clients):
            self.starts.setdefault(client, begun[k])
            self.moved[client] = self.moved[client] + rows[k] if client in self.moved else rows[k]
        return Trained(weights, torch.zeros(len(clients)))

    def _updates(self, clients: int, sizes: Sequence[int]) -> npt.NDArray[np.float32]:
        """(K, D) updates of tensors with such sizes."""
        tensors = np.repeat(np.arange(len(sizes)), sizes)
        each = np.array(sizes, dtype=np.float64)[tensors]
        kinds = (
            self.rng.integers(-2, len(sizes), clients) if self.rng.random() < 0.5 else self.rng.integers(-2, 0, clients)
        )
        signs = self.rng.integers(0, 2, (clients, len(tensors)), dtype=np.int8) * 2.0 - 1
        shapes = {-2: np.full(len(tensors), len(tensors) ** -0.5), -1: (len(sizes) * each) ** -0.5}
        lengths = np.stack([shapes.get(kind, (tensors == kind) * each**-0.5) for kind in kinds.tolist()])
        norms = self.clip * self.rng.choice(np.array(self.norms), (clients, 1))
        return np.asarray(signs * lengths * norms, dtype=np.float32 if clients * len(tensors) > 10**7 else np.float64)


@dataclass(frozen=True)
class Played:
    """One round that was played.

    Attributes:
        entry: who was in it.
        clip: C of the round, and `next_clip` that of the round after it.
        method: the method as it was in the round.
        before, after: the method's memory.
        collected: what the server saw; None where the round was discarded.
        moved, starts: as the trainer knows them.
    """

    entry: Entry
    clip: float
    next_clip: float
    method: "Method"
    before: "State"
    after: "State"
    collected: Collected | None
    moved: Mapping[int, Tensor]
    starts: Mapping[int, Tensor]


class Rehearsal:
    """A copy of a simulation that stands before its first round; the simulation itself stays as it is."""

    def __init__(self, simulation: "Simulation", trainer: Trainer, seed: int | None = None) -> None:
        """seed: of another run of the same experiment; left out: the run's own."""
        played = copy.copy(simulation)
        played.trainer, played.clock, played.round, played.noise = trainer, Clock(), 0, {}
        played.ledger = Ledger(repeatable=False)
        played.evaluator = _Unmeasured()
        played.on_recording = None
        if seed is not None:
            played.schedule = replace(simulation.schedule, seed=seed)
            played.mechanism = replace(simulation.mechanism, schedule=replace(simulation.mechanism.schedule, seed=seed))
            played.context = replace(simulation.context, schedule=replace(simulation.context.schedule, seed=seed))
        self.simulation, self.trainer = played, trainer
        self._outcomes: list[Outcome] = []
        played.on_outcome = self._outcomes.append

    def entry(self, t: int, clients: Iterable[int]) -> Entry:
        """Round t with clients of the auditor's choice instead of those drawn; nobody is at a cap."""
        played, members = self.simulation, tuple(sorted(clients))
        return plan_round(t, members, members, played.mechanism, played.method, Ledger(repeatable=False), None)

    def play(self, entry: Entry | None = None) -> Played:
        """The next round, or the one that the entry describes."""
        played = self.simulation
        if entry is not None:
            played.round = entry.round - 1
        entry = entry or played.draw()
        clip, method, before = played.clip, played.method, played.state
        known = self.trainer if isinstance(self.trainer, KnownTrainer) else None
        if known is not None:
            known.begin(clip)
        self._outcomes.clear()
        played.step(entry)
        return Played(
            entry,
            clip,
            played.clip,
            method,
            before,
            played.state,
            self._outcomes[-1].collected if self._outcomes else None,
            {} if known is None else known.moved,
            {} if known is None else known.starts,
        )


def another_seed(rng: np.random.Generator) -> int:
    """The seed of another run of the same experiment."""
    return int(rng.integers(2**31))


def fresh(method: "Method") -> "Method":
    """Another object of the same method, which has no memory of its own."""
    return type(method)(method.settings, method.setup)


def model_row(weights: Weights) -> npt.NDArray[np.float64]:
    """A model as (D,), in float64."""
    return as_row(weights).double().cpu().numpy()


class _Unmeasured(Evaluator):
    """Accuracies are no part of a rehearsal."""

    def __init__(self) -> None:
        pass

    def measure(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        return {"test_accuracy": None, "test_accuracy_per_class": []}

    def measure_shared(
        self, weights: Mapping[str, Tensor], clients: Sequence[int], record: Mapping[str, Any], by_clients: bool
    ) -> dict[str, Any]:
        return {}

    def measure_own(
        self, models: Callable[[], Iterable[tuple[int, Mapping[str, Tensor]]]], most: int, by_clients: bool
    ) -> dict[str, Any]:
        return {}

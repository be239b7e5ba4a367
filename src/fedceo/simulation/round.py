"""One round, as a pure function: the simulator, the server of a federation and the audit all take it from here.

    entry = plan_round(t, drawn, reported, mechanism, method, ledger, cap)
    outcome = take_round(state, entry, method, collect)

`collect` is what differs: a `LocalCohort` trains the clients on this machine and privatises what they send (the audit
gives it a trainer that sends canaries), a federation's server hands over the uploads that its nodes have sent. All else
is shared: whether a round is released, which part of the uploads the method may see, the server's step, and the parts
of models that clients keep at home.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedceo.accounting.ledger import Entry, Ledger
from fedceo.mechanisms.banded import Noises
from fedceo.mechanisms.base import Mechanism
from fedceo.mechanisms.clipping import finite_rows
from fedceo.mechanisms.uploads import Contribution, Senders, Stack, Uploads
from fedceo.methods.base import Method, State, Statistics
from fedceo.simulation.clock import Clock
from fedceo.simulation.counting import noised_counts
from fedceo.tensors.weights import Weights
from fedceo.training.context import TrainingContext
from fedceo.training.threads import threads_for
from fedceo.training.work import Trainer, Work


@dataclass(frozen=True)
class Collected:
    """The uploads of a round, and the parts of models that stay at home.

    Attributes:
        uploads: the privatised uploads.
        personal: client -> the parts of its model that it keeps.
        loss: mean training loss of those who trained, None where nobody did or it is not finite.
        sent: the contribution before any mechanism; None where clients send statistics or train elsewhere.
        noise: the noise that the next round's depends on, which no method is shown; empty where there is none.
        counts: client -> what it has counted of its records, noised, where it releases that in the round.
    """

    uploads: Uploads
    personal: dict[int, Weights] = field(default_factory=dict)
    loss: float | None = None
    sent: Contribution | None = None
    noise: Noises = field(default_factory=dict)
    counts: dict[int, Tensor] = field(default_factory=dict)


Collect = Callable[[State, Entry], Collected]


@dataclass(frozen=True)
class Outcome:
    """A round that was taken.

    Attributes:
        state: the method's memory after the round.
        record: the round's metrics, as far as the round itself knows them.
        collected: the uploads, None for a round that was discarded.
    """

    state: State
    record: dict[str, Any]
    collected: Collected | None


def plan_round(
    t: int,
    drawn: Sequence[int],
    reported: Sequence[int],
    mechanism: Mechanism,
    method: Method,
    ledger: Ledger,
    cap: int | None,
) -> Entry:
    """The ledger's entry of a round that is about to be taken: who reports, who is capped, whether it is released.

    Args:
        drawn, reported: the cohort, and those of it who report, ascending.
        cap: privacy.participation_cap.
    """
    capped = [client for client in reported if cap is not None and ledger.participations[client] >= cap]
    if mechanism.drops_capped:
        reported, capped = [client for client in reported if client not in capped], []
    return Entry(
        round=t,
        cohort=tuple(drawn),
        reported=tuple(reported),
        capped=tuple(capped),
        noise=mechanism.noise,
        smoothed=method.smooths(t),
        released=len(reported) >= mechanism.least_reports,
    )


def take_round(state: State, entry: Entry, method: Method, collect: Collect, clock: Clock | None = None) -> Outcome:
    """Take the round that an entry describes; nothing changes but the state that is returned.

    Args:
        collect: gives the uploads; it is not called for a round that is not released.
        clock: books the time of the server's step.
    """
    if not entry.released:
        return Outcome(method.idle(state), {"discarded": True, "train_loss": None}, None)
    found = collect(state, entry)
    if found.personal:
        state = replace(state, personal={**state.personal, **found.personal})
    state = method.told(state, found.counts) if found.counts else state
    numbers = len(entry.reported) * sum(w.numel() for w in state.weights.values())
    with (clock or Clock()).during("server step"), threads_for(numbers):
        after, about = method.aggregate(state, method.visible(found.uploads), entry.round)
    after = replace(after, counted=state.counted | found.counts.keys())
    record = {"nonfinite_updates": found.uploads.nonfinite, "train_loss": found.loss} | about
    return Outcome(after, record, found)


@dataclass(frozen=True)
class LocalCohort:
    """Collects a round's uploads on this machine: the clients train, and the mechanism privatises what they send.

    Attributes:
        works: the phases of local training, one after another.
        sizes: (N,) weight of each client in a mean; None for equal weights.
        noise: of earlier rounds, where the round's depends on it.
    """

    method: Method
    mechanism: Mechanism
    trainer: Trainer
    context: TrainingContext
    works: Sequence[Work]
    sizes: Tensor | None = None
    clock: Clock = field(default_factory=Clock)
    noise: Noises = field(default_factory=dict)

    def __call__(self, state: State, entry: Entry) -> Collected:
        statistics = self.method.statistics(entry.round)
        with self.clock.during("training"):
            sent, loss = self._contribution(state, entry, statistics)
            counts = noised_counts(self.method, self.mechanism, self.context, state, entry)
        personal = _kept(sent.personal, entry)
        if self.method.stays_home(entry.round):
            senders = self._senders(entry)
            return Collected(Stack({}, senders.clients, senders.sizes, 0), personal, loss, counts=counts)
        origin = {name: state.weights[name] for name in sent.start}
        if statistics is not None:  # which are noised as they are, not as changes of the model
            origin = {name: torch.zeros_like(w) for name, w in origin.items()}
        numbers = sum(w.numel() for w in sent.trained.values())
        with self.clock.during("privatising"), threads_for(numbers):
            mechanism = self.mechanism.before(entry.round, origin, self.noise)
            uploads = mechanism.privatise(sent, self._senders(entry), origin)
        sent_models = sent if statistics is None else None
        return Collected(uploads, personal, loss, sent_models, mechanism.drawn, counts)

    def _senders(self, entry: Entry) -> Senders:
        clients = entry.reported
        sizes = torch.ones(len(clients), dtype=torch.float64)
        if self.sizes is not None:
            sizes = self.sizes[list(clients)].double()
        return Senders(
            entry.round, clients, sizes, tuple(k for k, client in enumerate(clients) if client in entry.capped)
        )

    def _contribution(
        self, state: State, entry: Entry, statistics: Statistics | None
    ) -> tuple[Contribution, float | None]:
        """The contribution of those who report, neither clipped nor noised, and the mean loss of those who train."""
        if statistics is not None:
            return self._measured(state, entry, statistics), None
        loss = None
        passes: list[Weights] = [self.method.starts(state, entry.reported, entry.round)]
        for work in self.works:
            begin = self.method.phase_start(state, entry.reported, passes)
            trained, loss = self._phase(begin, entry, self.method.for_cohort(work, state, entry.reported, passes))
            passes.append(trained)
        if self.method.stays_home(entry.round):
            return Contribution({}, {}, passes[-1]), loss
        return _without_capped(self.method.contribution(state, entry.reported, passes), entry), loss

    def _measured(self, state: State, entry: Entry, statistics: Statistics) -> Contribution:
        """The contribution of clients that send statistics; those at their cap send the statistics of no records."""

        def of(indices: Tensor) -> dict[str, Tensor]:
            return statistics(state, *self.context.records(indices.to(self.context.device)))

        none = of(torch.empty(0, dtype=torch.int64))  # which gives names and shapes though nobody may be in
        train = self.context.federation.train
        found = [of(train[client]) if client in entry.own else none for client in entry.reported]
        sent = {name: torch.stack([zeros, *(each[name] for each in found)])[1:] for name, zeros in none.items()}
        return Contribution({name: torch.zeros_like(s) for name, s in sent.items()}, sent)

    def _phase(self, starts: Weights, entry: Entry, work: Work) -> tuple[Weights, float | None]:
        """One phase of local training; clients at their cap keep the weights that they start from."""
        if not entry.own:
            return starts, None
        if not entry.capped:
            found = self.trainer.train(starts, entry.own, entry.round, work)
            weights: Weights = found.weights
        else:
            own = set(entry.own)
            device = self.context.device
            rows = torch.tensor([k for k, client in enumerate(entry.reported) if client in own], device=device)
            found = self.trainer.train({n: w[rows] for n, w in starts.items()}, entry.own, entry.round, work.of(rows))
            weights = {name: w.clone().index_copy_(0, rows, found.weights[name]) for name, w in starts.items()}
        loss = float(found.losses.mean())
        return weights, loss if math.isfinite(loss) else None


def _without_capped(sent: Contribution, entry: Entry) -> Contribution:
    """The contribution in which clients at their cap have no update, whatever a method makes of models they kept."""
    if not entry.capped:
        return sent
    capped = [client in entry.capped for client in entry.reported]

    def stayed(start: Tensor, trained: Tensor) -> Tensor:
        rows = torch.tensor(capped, device=trained.device).view(-1, *[1] * (trained.ndim - 1))
        return torch.where(rows, start, trained)

    return replace(sent, trained={name: stayed(sent.start[name], w) for name, w in sent.trained.items()})


def _kept(personal: Weights, entry: Entry) -> dict[int, Weights]:
    """Each client's personal part; a client that is capped or whose part overflowed keeps the one it had."""
    if not personal:
        return {}
    finite = finite_rows(personal).tolist()
    return {
        client: {name: w[k].clone() for name, w in personal.items()}
        for k, client in enumerate(entry.reported)
        if finite[k] and client not in entry.capped
    }

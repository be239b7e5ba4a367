"""Faults of a whole run, each planted in the code path that runs: what an audit must find in ten of ten.

A fault changes one function of the library while it is planted, or one object of the simulation. `ASKED` are those that
the audit was asked to find, `FURTHER` those that an audit of the mechanism alone does not see.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from fedceo.accounting.ledger import Entry
from fedceo.audit.report import Report
from fedceo.experiment.file import parse_experiment
from fedceo.mechanisms.base import Mechanism
from fedceo.mechanisms.central import Central
from fedceo.mechanisms.distributed import Distributed
from fedceo.mechanisms.uploads import Contribution, Mean, Senders, Stack, Uploads
from fedceo.methods.base import Method, State
from fedceo.methods.centaur import Centaur
from fedceo.methods.fedceo import FedCEO
from fedceo.simulation import rounds
from fedceo.simulation.preparing import prepare
from fedceo.simulation.round import Collected, LocalCohort
from fedceo.simulation.rounds import Simulation
from fedceo.tensors.weights import Weights
from fedceo.training import per_example
from fedceo.training.noise import RecordNoise
from fedceo.training.schedule import Schedule
from fedceo.training.work import Work

NOISES = ("record noise", "upload noise", "central noise", "count noise")
Plant = Callable[[ExitStack], None]
Settings = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class RunFault:
    """A fault: how it is planted, and the experiment that it shows in, as far as it differs from TABLE."""

    plant: Plant
    settings: Settings = field(default_factory=dict)

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            self.plant(stack)
            yield


TABLE: Settings = {
    "data": {"name": "digits", "clients": 100},
    "model": {"name": "logistic"},
    "cohort": {"size": 10},
    "train": {"rounds": 60, "local_epochs": 2, "batch_size": 4, "server_learning_rate": 0.5},
    "privacy": {"mechanism": "distributed", "noise_multiplier": 1.0, "clip": 0.5},
    "method": {"name": "fedavg"},
}
RECORD: Settings = {"privacy": {"mechanism": "record", "noise_multiplier": 0.8}}
FEDCEO: Settings = {"method": {"name": "fedceo", "interval": 5, "strength": 20.0, "restart": "own"}}


def simulation_of(settings: Settings, seed: int = 0) -> Simulation:
    """The small federation that faults are planted in."""
    table: dict[str, Any] = {name: TABLE.get(name, {}) | settings.get(name, {}) for name in {**TABLE, **settings}}
    return prepare(parse_experiment(table | {"seed": seed}))


def patched(stack: ExitStack, owner: Any, name: str, made: Callable[[Any], Any]) -> None:
    """Put what is made of the right function in its place."""
    stack.enter_context(patch.object(owner, name, made(getattr(owner, name))))


def keyed(key: Callable[[int, int], tuple[int, int]], purposes: tuple[str, ...] = NOISES) -> Plant:
    """Noise whose key is another function of round and client."""

    def made(right: Any) -> Any:
        def generator(self: Schedule, purpose: str, round_: int = 0, client: int = 0) -> np.random.Generator:
            found: np.random.Generator = right(
                self, purpose, *(key(round_, client) if purpose in purposes else (round_, client))
            )
            return found

        return generator

    return lambda stack: patched(stack, Schedule, "generator", made)


def of_few_bits(right: Any) -> Any:
    def generator(self: Schedule, purpose: str, round_: int = 0, client: int = 0) -> np.random.Generator:
        return np.random.default_rng(int(right(self, purpose, round_, client).integers(2**16)))

    return generator


def of_every_run(right: Any) -> Any:
    def generator(self: Schedule, purpose: str, round_: int = 0, client: int = 0) -> np.random.Generator:
        found: np.random.Generator = right(
            replace(self, seed=7) if purpose in NOISES else self, purpose, round_, client
        )
        return found

    return generator


def cohort_changed(change: Callable[..., Any]) -> Plant:
    """change: (local cohort, simulation, round) -> local cohort."""

    def made(right: Any) -> Any:
        return lambda self, t: change(right(self, t), self, t)

    return lambda stack: patched(stack, Simulation, "local_cohort", made)


def without_noise(made: LocalCohort, simulation: Simulation, t: int) -> LocalCohort:
    return replace(made, mechanism=replace(made.mechanism, noise_multiplier=0.0))


def bare_in_the_last(made: LocalCohort, simulation: Simulation, t: int) -> LocalCohort:
    return without_noise(made, simulation, t) if t == simulation.experiment.train.rounds else made


def spied(stack: ExitStack) -> list[Uploads]:
    """The list to which every round's uploads are added as they would be without noise."""
    seen: list[Uploads] = []

    def made(right: Any) -> Any:
        def call(self: LocalCohort, state: State, entry: Entry) -> Collected:
            found: Collected = right(self, state, entry)
            assert found.sent is not None
            origin = {name: state.weights[name] for name in found.sent.start}
            bare = replace(self.mechanism, noise_multiplier=0.0, count_noise=0.0)
            seen.append(bare.privatise(found.sent, self._senders(entry), origin))
            return found

        return call

    patched(stack, LocalCohort, "__call__", made)
    return seen


def bare_mean(stack: ExitStack) -> None:
    seen = spied(stack)
    patched(stack, Stack, "mean", lambda right: lambda self: right(seen[-1] if isinstance(seen[-1], Stack) else self))


def bare_aggregation(stack: ExitStack) -> None:
    seen = spied(stack)

    def made(right: Any) -> Any:
        return lambda self, state, uploads, round_: right(self, state, seen[-1].mean_only(), round_)

    patched(stack, Method, "aggregate", made)


def neighbours_update(stack: ExitStack) -> None:
    """One client's returned model holds what its neighbour sent, before noise."""
    seen = spied(stack)

    def made(right: Any) -> Any:
        def aggregate(self: FedCEO, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
            after, about = right(self, state, uploads, round_)
            if not after.personal:
                return after, about
            bare, first = seen[-1], min(after.personal)
            leaked = {n: w + bare.weights[n][1] - state.weights[n] for n, w in after.personal[first].items()}
            return replace(after, personal={**after.personal, first: leaked}), about

        return aggregate

    patched(stack, FedCEO, "aggregate", made)


def noise_kept_from(is_bare: Callable[[int, str], Any]) -> Plant:
    """is_bare: (client, name of a tensor) -> False, or which entries of it stay without noise."""

    def made(right: Any) -> Any:
        def noised(self: Distributed, updates: dict[str, Tensor], senders: Senders) -> dict[str, Tensor]:
            before = {name: u.clone() for name, u in updates.items()}
            updates = right(self, updates, senders)
            for k, client in enumerate(senders.clients):
                for name, u in updates.items():
                    entries = is_bare(client, name)
                    if entries is not False:
                        u[k][entries] = before[name][k][entries]
            return updates

        return noised

    return lambda stack: patched(stack, Distributed, "noised", made)


def halved_noise(right: Any) -> Any:
    def noised(self: Distributed, updates: dict[str, Tensor], senders: Senders) -> dict[str, Tensor]:
        before = {name: u.clone() for name, u in updates.items()}
        updates = right(self, updates, senders)
        for k, client in enumerate(senders.clients):
            for name, u in updates.items():
                if client >= 50:
                    u[k] = (u[k] + before[name][k]) / 2
        return updates

    return noised


def one_noise_for_all(like: Weights, std: float, generator: np.random.Generator) -> dict[str, Tensor]:
    longest = max(w.numel() for w in like.values())
    drawn = torch.from_numpy(generator.standard_normal(longest, dtype=np.float32)) * std
    return {name: drawn[: w.numel()].view(w.shape).clone() for name, w in like.items()}


def last_unclipped(right: Any) -> Any:
    def clipped(self: Mechanism, updates: Weights) -> tuple[dict[str, Tensor], Tensor]:
        last = list(updates)[-1]
        found, within = right(self, updates)
        return {**found, last: updates[last].clone()}, within

    return clipped


def momentum_after_clip(right: Any) -> Any:
    before: dict[int, dict[str, Tensor]] = {}

    def privatise(self: Distributed, sent: Contribution, senders: Senders, origin: Weights) -> Stack:
        found: Stack = right(self, sent, senders, origin)
        updates, _ = self.clipped({name: sent.trained[name] - start for name, start in sent.start.items()})
        weights = {name: w.clone() for name, w in found.weights.items()}
        for k, client in enumerate(senders.clients):
            for name, w in weights.items():
                if client in before:
                    w[k] += self.step * 0.9 * before[client][name]
            before[client] = {name: u[k].clone() for name, u in updates.items()}
        return replace(found, weights=weights)

    return privatise


def twice(right: Any) -> Any:
    def privatise(self: Central, sent: Contribution, senders: Senders, origin: Weights) -> Mean:
        found: Mean = right(self, sent, senders, origin)
        if 60 not in senders.clients:
            return found
        updates, _ = self.clipped({name: sent.trained[name] - w for name, w in origin.items()})
        row = senders.clients.index(60)
        more = {name: w + self.step / self.divisor * updates[name][row] for name, w in found.weights.items()}
        return replace(found, weights=more)

    return privatise


def over_reports(right: Any) -> Any:
    def privatise(self: Central, sent: Contribution, senders: Senders, origin: Weights) -> Mean:
        found: Mean = right(replace(self, divisor=float(max(len(senders.clients), 1))), sent, senders, origin)
        return found

    return privatise


def follows_the_bare_count(stack: ExitStack) -> None:
    """The record of the round tells the noised count, and the clip follows the count without noise."""
    seen = spied(stack)

    def made(right: Any) -> Any:
        return lambda self, unclipped: right(self, seen[-1].unclipped)

    patched(stack, Simulation, "_followed", made)


def first_steps_only(right: Any) -> Any:
    return lambda self, step, size: right(self, step, size) * (1.0 if step < 2 else 0.0)


def bare_training(stack: ExitStack) -> None:
    """The local training of client 37 draws no noise."""

    def made_init(right: Any) -> Any:
        def init(self: RecordNoise, schedule: Schedule, round_: int, clients: Any, *rest: Any) -> None:
            right(self, schedule, round_, clients, *rest)
            self.bare = [k for k, client in enumerate(clients) if client == 37]  # type: ignore[attr-defined]

        return init

    def made_draw(right: Any) -> Any:
        def draw(self: RecordNoise, step: int, size: int) -> Tensor:
            found: Tensor = right(self, step, size)
            found[self.bare] = 0.0  # type: ignore[attr-defined]
            return found

        return draw

    patched(stack, RecordNoise, "__init__", made_init)
    patched(stack, RecordNoise, "draw", made_draw)


def bare_head(right: Any) -> Any:
    def phases(self: Centaur, work: Work) -> tuple[Work, ...]:
        head, body = right(self, work)
        return replace(head, record=None), body

    return phases


def uncapped_phase(right: Any) -> Any:
    return lambda self, starts, entry, work: right(self, starts, replace(entry, capped=()), work)


def cohort_of(change: Callable[..., list[int]]) -> Plant:
    """change: (right draw, schedule, round, clients, size, sampling) -> cohort."""

    def made(right: Any) -> Any:
        return lambda self, *asked: change(right, self, *asked)

    return lambda stack: patched(stack, Schedule, "cohort", made)


def always_client_0(right: Any, schedule: Schedule, *asked: Any) -> list[int]:
    drawn: list[int] = right(schedule, *asked)
    return sorted({0, *drawn[1:]})


def of(owner: Any, name: str, made: Callable[[Any], Any]) -> Plant:
    return lambda stack: patched(stack, owner, name, made)


CAP: Settings = {"privacy": {"participation_cap": 3}}
POISSON: Settings = {"cohort": {"sampling": "poisson"}}
MLP: Settings = {"model": {"name": "mlp"}, "data": {"clients": 50}}

ASKED: dict[str, RunFault] = {
    "no noise in the run": RunFault(cohort_changed(without_noise)),
    "no noise in Stack's mean": RunFault(bare_mean),
    "no noise in aggregation": RunFault(bare_aggregation),
    "noise keyed by client mod 50": RunFault(keyed(lambda t, k: (t, k % 50))),
    "one pair of 50 clients shares noise": RunFault(
        keyed(lambda t, k: (t, 3 if k == 41 else k)), {"data": {"clients": 50}}
    ),
    "one client bare": RunFault(noise_kept_from(lambda k, name: k == 71 and ...)),
    "noise repeats at lag 10": RunFault(keyed(lambda t, k: (t % 10, k))),
    "noise repeats at period 50": RunFault(keyed(lambda t, k: (t % 50, k))),
    "one noise for every tensor": RunFault(of(per_example, "draw_noise", lambda right: one_noise_for_all)),
    "the last bias not clipped": RunFault(of(Mechanism, "clipped", last_unclipped)),
    "momentum added after the clip": RunFault(of(Distributed, "privatise", momentum_after_clip)),
    "weights by records": RunFault(
        cohort_changed(lambda made, simulation, t: replace(made, sizes=simulation.sizes)),
        {"data": {"partition": "dirichlet", "clients": 50}},
    ),
    "a neighbour's bare update in a returned model": RunFault(neighbours_update, FEDCEO),
    "Poisson mean over those who reported": RunFault(
        of(Central, "privatise", over_reports), POISSON | {"privacy": {"mechanism": "central"}}
    ),
    "the adaptive count un-noised": RunFault(
        of(Mechanism, "drawn_count_noise", lambda right: lambda self, *asked: 0.0),
        {"privacy": {"clipping": "adaptive"}},
    ),
    "16-bit seeds": RunFault(of(Schedule, "generator", of_few_bits)),
    "the same cohort every round": RunFault(cohort_of(lambda right, self, t, *asked: right(self, 1, *asked))),
    "shuffled instead of Poisson batches": RunFault(
        of(Schedule, "poisson_batches", lambda right: Schedule.batches), RECORD
    ),
    "noise in the first two steps only": RunFault(of(RecordNoise, "draw", first_steps_only), RECORD),
    "a head phase without noise": RunFault(
        of(Centaur, "phases", bare_head), RECORD | MLP | {"method": {"name": "centaur", "head_epochs": 2}}
    ),
    "3 % too little noise": RunFault(
        of(Distributed, "noise", lambda right: property(lambda self: 0.97 * right.fget(self)))
    ),
}

FURTHER: dict[str, RunFault] = {
    "a cap that is never applied": RunFault(
        of(rounds, "plan_round", lambda right: lambda *asked: right(*asked[:-1], None)), CAP
    ),
    "clients at their cap train on": RunFault(of(LocalCohort, "_phase", uncapped_phase), CAP),
    "the same noise under every seed": RunFault(of(Schedule, "generator", of_every_run)),
    "noise keyed by round plus client": RunFault(keyed(lambda t, k: (0, t + k))),
    "one entry bare": RunFault(noise_kept_from(lambda k, name: name.endswith("bias") and 0)),
    "half the noise of clients from 50 on": RunFault(of(Distributed, "noised", halved_noise)),
    "no noise in the last round": RunFault(cohort_changed(bare_in_the_last)),
    "one client counts twice": RunFault(of(Central, "privatise", twice), {"privacy": {"mechanism": "central"}}),
    "a clip that follows the bare count": RunFault(follows_the_bare_count, {"privacy": {"clipping": "adaptive"}}),
    "one client in every cohort": RunFault(cohort_of(always_client_0)),
    "Poisson cohorts of exactly K": RunFault(
        cohort_of(lambda right, self, t, clients, size, sampling: right(self, t, clients, size, "fixed")), POISSON
    ),
    "the same clients drop out every time": RunFault(
        keyed(lambda t, k: (0, k), ("absence",)), {"cohort": {"dropout": 0.2}, "privacy": {"min_reports": 4}}
    ),
    "system randomness of 16 bits": RunFault(
        of(Schedule, "generator", of_few_bits), {"privacy": {"randomness": "system"}}
    ),
    "one client trains without noise": RunFault(bare_training, RECORD),
    "two phases share noise": RunFault(
        of(Work, "moment", lambda right: lambda self, round_: round_), RECORD | MLP | {"method": {"name": "ppsgd"}}
    ),
    "an epoch more than is accounted for": RunFault(
        of(Method, "phases", lambda right: lambda self, work: (replace(work, epochs=work.epochs + 1),)), RECORD
    ),
}

RUN_FAULTS = ASKED | FURTHER

RIGHT: dict[str, Settings] = {
    "distributed": {},
    "distributed, Poisson": POISSON,
    "distributed, dropout": {"cohort": {"dropout": 0.2}},
    "distributed, adaptive clipping": {"privacy": {"clipping": "adaptive"}},
    "distributed, system randomness": {"privacy": {"randomness": "system"}},
    "central": {"privacy": {"mechanism": "central"}},
    "central, Poisson": POISSON | {"privacy": {"mechanism": "central"}},
    "central, clipping per layer": {"privacy": {"mechanism": "central", "clipping": "per_layer"}},
    "FedCEO": FEDCEO,
    "record": RECORD,
}
"""Experiments with nothing planted, over all mechanisms."""
ROUNDS = 40
"""Rounds with canaries: few, for the checks of the run find most at once."""


def found_by(report: Report) -> list[str]:
    """The checks that failed and the views that were refuted."""
    checks = [finding.check for finding in report.findings if not finding.passed]
    return checks + [view.view for view in report.views if view.verdict == "refuted"]

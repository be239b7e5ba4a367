"""How faults are planted in a run: each changes one function of the library, or one object of a simulation."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from fedceo.accounting.ledger import Entry
from fedceo.mechanisms.banded import Noises, factorise, server_response
from fedceo.mechanisms.base import Mechanism
from fedceo.mechanisms.central import Central
from fedceo.mechanisms.distributed import Distributed
from fedceo.mechanisms.uploads import Contribution, Mean, Senders, Stack, Uploads
from fedceo.methods.base import Method, State
from fedceo.methods.centaur import Centaur
from fedceo.methods.fedceo import FedCEO
from fedceo.methods.scaffold import Scaffold
from fedceo.simulation.round import Collected, LocalCohort
from fedceo.simulation.rounds import Simulation
from fedceo.tensors.weights import Weights
from fedceo.training import noise
from fedceo.training.schedule import Schedule
from fedceo.training.work import Work

NOISES = ("record noise", "upload noise", "central noise", "count noise", "turned noise")
Plant = Callable[[ExitStack], None]
Settings = dict[str, dict[str, Any]]


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


def bare_controls(right: Any) -> Any:
    """The server's control is the mean of the clients' own, which they would have to send it without noise."""

    def aggregate(self: Scaffold, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        after, about = right(self, state, uploads, round_)
        kept = [state.weights, *state.personal.values()]
        bare = {name: torch.stack([each[name] for each in kept]).mean(0) for name in state.weights}
        return replace(after, server={"control": bare}), about

    return aggregate


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
        return cast(Mean, right(replace(self, divisor=float(max(len(senders.clients), 1))), sent, senders, origin))

    return privatise


def follows_the_bare_count(stack: ExitStack) -> None:
    """The record of the round tells the noised count, and the clip follows the count without noise."""
    seen = spied(stack)

    def made(right: Any) -> Any:
        return lambda self, unclipped: right(self, seen[-1].unclipped)

    patched(stack, Simulation, "_followed", made)


def first_steps_only(right: Any) -> Any:
    return lambda self, step, size: right(self, step, size) * (1.0 if step < 2 else 0.0)


@dataclass(frozen=True)
class Silence:
    """A generator whose normals are zeros."""

    integers: Any


def bare_training(stack: ExitStack) -> None:
    """The local training of client 37 draws no noise."""

    def made(right: Any) -> Any:
        def generator(self: Schedule, purpose: str, round_: int = 0, client: int = 0) -> Any:
            found = right(self, purpose, round_, client)
            return Silence(found.integers) if purpose in ("record noise", "turned noise") and client == 37 else found

        return generator

    def silent(right: Any) -> Any:
        return lambda out, generator: out.fill(0) if isinstance(generator, Silence) else right(out, generator)

    patched(stack, Schedule, "generator", made)
    patched(stack, noise, "fill_normals", silent)


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


def split_anew(right: Any, schedule: Schedule, t: int, *asked: Any) -> list[int]:
    """Groups that depend on how often all of them have had their turn."""
    drawn: list[int] = right(replace(schedule, seed=schedule.seed + t // asked[-1]), t, *asked)
    return drawn


def every_other_round(right: Any, schedule: Schedule, t: int, *asked: Any) -> list[int]:
    drawn: list[int] = right(schedule, t, *asked)
    return sorted({*drawn, 0} if t % 2 else {*drawn} - {0})


def one_band_more(made: LocalCohort, simulation: Simulation, t: int) -> LocalCohort:
    bands = len(made.mechanism.coefficients) + 1
    coefficients = factorise(server_response(0.0, simulation.experiment.train.rounds), bands)
    return replace(made, mechanism=replace(made.mechanism, coefficients=coefficients))


def longer_columns(made: LocalCohort, simulation: Simulation, t: int) -> LocalCohort:
    longer = tuple(1.02 * c for c in made.mechanism.coefficients)
    return replace(made, mechanism=replace(made.mechanism, coefficients=longer))


def noise_before(right: Any) -> Any:
    def correlated(fresh: Weights, earlier: Noises, coefficients: tuple[float, ...], round_: int) -> Weights:
        return earlier.get(round_ - 1) or right(fresh, earlier, coefficients, round_)

    return correlated


def of(owner: Any, name: str, made: Callable[[Any], Any]) -> Plant:
    return lambda stack: patched(stack, owner, name, made)

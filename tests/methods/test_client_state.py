"""Methods whose clients remember something or train a loss of their own, against the papers' algorithms in plain torch.

The rounds here are written as the papers write them: SCAFFOLD with controls as gradients that are sent beside the
model, FedNova with normalised gradients, pFedMe with its two models, FedRep in turns.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pytest
import torch

import fedceo
from fedceo.accounting.ledger import Entry
from fedceo.audit.report import audit
from fedceo.experiment.file import parse_experiment
from fedceo.mechanisms.none import NoMechanism
from fedceo.methods.base import Method, Setup, State
from fedceo.methods.fedavg import FedAvg
from fedceo.methods.scaffold import Scaffold
from fedceo.simulation.round import LocalCohort, take_round
from fedceo.simulation.spending import planned_rows
from fedceo.tensors.weights import Weights
from fedceo.training.schedule import Schedule
from fedceo.training.work import Trained, Work
from tests.support.plain_rounds import (
    EPOCHS,
    EVERYBODY,
    HEAD,
    RATE,
    Model,
    clipped,
    close,
    descend,
    difference,
    epsilons,
    mean_of,
    simulated,
    start,
    table,
)
from tests.support.run_faults import found_by, simulation_of
from tests.support.small_federation import SIZES
from tests.support.small_runs import TABLE, same_weights

ENGINES = pytest.mark.parametrize("engine", ["loop", "batched"])
STATEFUL = ["scaffold", "fednova", "pfedme", "fedrep"]
FREE: dict[str, Any] = {"clip": 1e6}
"""Clipping that never acts."""
STEP = 0.7
"""The server's step of `table`."""


def zeros() -> Model:
    return {name: torch.zeros_like(w) for name, w in start().items()}


def plus(a: Model, b: Model, times: float = 1.0) -> Model:
    return {name: w + times * b[name] for name, w in a.items()}


def scaffold_of_the_paper(rounds: int, size: int, rate: float = RATE) -> tuple[Model, Model, list[Model]]:
    """Algorithm 1 with option II: the model x, the server's control c and the clients' c_i, as gradients."""
    x, c, own = start(), zeros(), [zeros() for _ in EVERYBODY]
    for t in range(1, rounds + 1):
        changes, controls = [], []
        cohort = Schedule(0).cohort(t, len(SIZES), size, "fixed")
        for k in cohort:
            correction = difference(c, own[k])
            y = descend(x, k, rate=rate, extra=lambda w, correction=correction: correction)  # type: ignore[misc]
            after = plus(difference(own[k], c), difference(x, y), 1 / (EPOCHS * rate))
            changes.append(difference(y, x))
            controls.append(difference(after, own[k]))
            own[k] = after
        x = plus(x, mean_of(changes), STEP)
        c = plus(c, mean_of(controls), len(cohort) / len(SIZES))
    return x, c, own


@ENGINES
@pytest.mark.parametrize("size", [2, len(SIZES)])
def test_scaffold_is_the_papers_though_controls_are_never_sent(engine: str, size: int) -> None:
    x, c, own = scaffold_of_the_paper(4, size)
    found = simulated({"name": "scaffold"}, engine, 4, cohort={"size": size}, privacy=FREE)
    as_gradients = -1 / (EPOCHS * RATE)
    assert close(found.state.weights, x)
    assert close({n: as_gradients * w for n, w in found.state.server["control"].items()}, c)
    for k, kept in found.state.personal.items():
        assert close({n: as_gradients * w for n, w in kept.items()}, own[k])


class Quadratics:
    """A trainer of losses a_k |w - b_k|^2 / 2, whose minimum is known: gradients are a_k (w - b_k)."""

    a, b = torch.tensor([[0.2], [1.0], [3.0]]), torch.tensor([[4.0, -1.0], [0.0, 2.0], [-3.0, 1.0]])
    minimum = (a * b).sum(0) / a.sum(0)

    def train(self, starts: Weights, clients: Sequence[int], round_: int, work: Work) -> Trained:
        w, rows = starts["w"].clone(), list(clients)
        assert work.steps is not None
        for _ in range(work.steps):
            w = w - work.learning_rate * self.a[rows] * (w - self.b[rows])
            w = w if work.shift is None else w + work.shift["w"] / work.steps
        return Trained({"w": w}, torch.zeros(len(rows)))


@pytest.mark.parametrize("kind, arrives", [(Scaffold, True), (FedAvg, False)])
def test_scaffold_arrives_at_the_minimum_of_quadratics_where_fedavg_drifts(kind: type[Method], arrives: bool) -> None:
    method, everybody = kind(setup=Setup(clients=3)), (0, 1, 2)
    collect = LocalCohort(
        method, NoMechanism(1.0, 0.0, Schedule(0)), Quadratics(), cast(Any, None), [Work(1, 1, 0.1, steps=5)]
    )
    state = State({"w": torch.zeros(2)})
    for t in range(1, 400):
        entry = Entry(t, everybody, everybody, (), 0.0, smoothed=False, released=True)
        state = take_round(state, entry, method, collect).state
    assert torch.allclose(state.weights["w"], Quadratics.minimum, atol=1e-4) == arrives


@ENGINES
@pytest.mark.parametrize("momentum, proximal", [(0.0, 0.0), (0.0, 0.4), (0.5, 0.0)])
def test_fednova_counts_every_update_for_the_same_steps(engine: str, momentum: float, proximal: float) -> None:
    """A change is divided by the weight of its own steps, one gradient's way to the end after another."""
    train: dict[str, Any] = {
        "batch_size": 4, "momentum": momentum, "proximal": proximal, "learning_rate": RATE, "local_epochs": 2,
    }  # fmt: skip
    privacy = {"mechanism": "none", "clip": 1.0, "noise_multiplier": None}
    none = {"train": train | {"server_learning_rate": 1.0}, "privacy": privacy}
    local = simulated({"name": "local"}, engine, 1, **{name: dict(fields) for name, fields in none.items()})
    wanted = []
    for k, size in enumerate(SIZES):
        steps, weights = 2 * -(-size // 4), []
        for begun in range(steps):  # the way that one gradient at that step has gone by the end
            way, velocity = 0.0, 0.0
            for at in range(steps):
                velocity = momentum * velocity + (at == begun) - RATE * proximal * way
                way += velocity
            weights.append(way)
        wanted.append({n: u * 6 / sum(weights) for n, u in difference(local.state.personal[k], start()).items()})
    found = simulated(
        {"name": "fednova", "steps": 6.0}, engine, 1, **{name: dict(fields) for name, fields in none.items()}
    )
    assert close(found.state.weights, plus(start(), mean_of(wanted)))


def pulled_to(anchor: Model, pull: float, w: Model) -> Model:
    return {name: pull * (v - anchor[name]) for name, v in w.items()}


@ENGINES
def test_pfedme_sends_the_copy_that_follows_its_own_model(engine: str) -> None:
    pull, follow, w, own = 0.6, 0.3, start(), [start() for _ in EVERYBODY]
    for _ in range(3):
        copies = []
        for k in EVERYBODY:
            theta, copy = w, w
            for _ in range(EPOCHS):
                theta = descend(theta, k, steps=1, extra=partial(pulled_to, copy, pull))
                copy = {n: v - follow * (v - theta[n]) for n, v in copy.items()}
            own[k] = theta
            copies.append(clipped(difference(copy, w)))
        w = plus(w, mean_of(copies), STEP)
    found = simulated({"name": "pfedme", "strength": pull, "follow": follow}, engine)
    assert close(found.state.weights, w)
    assert all(close(found.state.personal[k], own[k]) for k in EVERYBODY)
    assert close({n: v[0] for n, v in found.method.personalise(found.state, [2], 3).items()}, own[2])


@ENGINES
def test_fedrep_fits_last_layers_and_then_the_representation(engine: str) -> None:
    body = tuple(name for name in start() if name not in HEAD)
    w, heads = start(), [{name: start()[name] for name in HEAD} for _ in SIZES]
    for _ in range(2):
        updates = []
        for k in EVERYBODY:
            tuned = descend(w | heads[k], k, steps=4, rate=0.1, names=HEAD)
            trained = descend(tuned, k, names=body)
            updates.append(clipped({name: trained[name] - w[name] for name in body}))
            heads[k] = {name: tuned[name] for name in HEAD}
        w = w | plus({name: w[name] for name in body}, mean_of(updates), STEP)
    found = simulated({"name": "fedrep", "head_epochs": 4, "head_learning_rate": 0.1}, engine, 2)
    assert close(found.state.weights, w)
    assert all(close(found.state.personal[k], heads[k]) for k in EVERYBODY)
    assert all(torch.equal(found.state.weights[name], start()[name]) for name in HEAD), "heads never leave"


@pytest.mark.parametrize("mechanism", ["distributed", "central", "record"])
@pytest.mark.parametrize("name", STATEFUL)
def test_both_engines_agree_under_noise(name: str, mechanism: str) -> None:
    sections: dict[str, dict[str, Any]] = {
        "privacy": {"mechanism": mechanism, "clip": 0.5, "noise_multiplier": 0.5},
        "train": {"batch_size": 4, "momentum": 0.5},
        "cohort": {"size": 3},
    }
    loop, batched = (simulated({"name": name}, each, 3, **dict(sections)).state for each in ("loop", "batched"))
    assert close(batched.weights, loop.weights)
    assert batched.personal.keys() == loop.personal.keys()
    assert all(close(batched.personal[k], kept) for k, kept in loop.personal.items())


@pytest.mark.parametrize("name", STATEFUL)
def test_a_resumed_run_ends_on_the_same_bits(name: str, tmp_path: Any) -> None:
    """What clients remember travels with the checkpoint."""
    small = TABLE | {"method": {"name": name}, "train": {"rounds": 4, "local_epochs": 2, "batch_size": 16}}
    whole = fedceo.run(small)
    seen: list[int] = []
    fedceo.run(
        small,
        out=tmp_path / "part",
        on_round=lambda record: seen.append(record["round"]),
        should_stop=lambda: len(seen) >= 1,
    )
    ended = fedceo.resume(tmp_path / "part")
    assert ended.finished and same_weights(whole, ended) and ended.history == whole.history


@pytest.mark.parametrize("name", STATEFUL)
def test_a_client_at_its_cap_sends_nothing_and_remembers_nothing_new(name: str) -> None:
    capped: dict[str, Any] = {"privacy": {"participation_cap": 1}}
    once, thrice = (simulated({"name": name}, "batched", rounds, **dict(capped)) for rounds in (1, 3))
    assert not close(once.state.weights, start())
    assert close(thrice.state.weights, once.state.weights)
    assert all(close(thrice.state.personal[k], kept) for k, kept in once.state.personal.items())


@pytest.mark.parametrize("mechanism", ["distributed", "central"])
@pytest.mark.parametrize("name", STATEFUL)
def test_at_user_level_one_vector_is_sent_and_the_epsilon_is_fedavgs(name: str, mechanism: str) -> None:
    assert epsilons({"name": name}, mechanism) == epsilons({"name": "fedavg"}, mechanism)


def test_a_control_that_is_sent_beside_the_update_would_cost_a_second_round() -> None:
    """Two messages of norm at most C, each with noise sigma C, are one with noise sigma C / sqrt(2)."""

    def outsiders(rounds: int, sigma: float = 2.0) -> float:
        privacy = {"mechanism": "central", "clip": 1.0, "noise_multiplier": sigma}
        experiment = parse_experiment(table({"name": "scaffold"}, privacy=privacy, train={"rounds": rounds}))
        epsilon = next(row.epsilon for row in planned_rows(experiment, list(SIZES)) if row.observer == "outsider")
        assert epsilon is not None
        return epsilon

    assert outsiders(4) < outsiders(4, 2.0 / 2**0.5) == pytest.approx(outsiders(8))


def test_every_private_step_is_counted_under_record_privacy() -> None:
    fedavg = epsilons({"name": "fedavg"}, "record")
    for name in ("scaffold", "fednova", "pfedme"):
        assert epsilons({"name": name}, "record") == fedavg
    heads = epsilons({"name": "fedrep", "head_epochs": 3}, "record")
    assert heads == epsilons({"name": "centaur", "head_epochs": 3}, "record") and heads != fedavg


def test_an_audit_passes_scaffold_and_looks_at_its_control() -> None:
    assert not found_by(audit(simulation_of({"method": {"name": "scaffold"}}, 1), rounds=60))


@pytest.mark.parametrize("name", STATEFUL)
def test_nodes_that_forget_are_given_no_method_that_remembers(name: str) -> None:
    refused = parse_experiment(table({"name": name})).method.refused_on_nodes
    assert (refused is None) == (name == "fednova")

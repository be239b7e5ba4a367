"""Methods whose clients have whole models of their own, against rounds in plain torch, on both engines."""

from typing import Any

import pytest
import torch

from fedceo.errors import UsageError
from fedceo.experiment.file import parse_experiment
from fedceo.simulation.spending import planned_rows
from tests.support.plain_rounds import (
    EVERYBODY,
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
from tests.support.small_federation import SIZES

ENGINES = pytest.mark.parametrize("engine", ["loop", "batched"])
PULL = 0.6


def moved(w: Model, trained: list[Model]) -> Model:
    """The global model after the clipped changes that the clients have sent, at a server's step of 0.7."""
    mean = mean_of([clipped(difference(each, w)) for each in trained])
    return {name: v + 0.7 * mean[name] for name, v in w.items()}


def pulled(own: Model, client: int, to: Model) -> Model:
    return descend(own, client, extra=lambda w: {name: PULL * (v - to[name]) for name, v in w.items()})


@ENGINES
def test_local_is_each_client_alone(engine: str) -> None:
    own = [start() for _ in EVERYBODY]
    for _ in range(3):
        own = [descend(own[k], k) for k in EVERYBODY]
    found = simulated({"name": "local"}, engine, privacy={"mechanism": "none", "noise_multiplier": None})
    assert all(close(found.state.personal[k], own[k]) for k in EVERYBODY)
    assert all(torch.equal(found.state.weights[name], w) for name, w in start().items()), "nothing was shared"
    assert close(found.method.global_model(found.state), mean_of(own))


@ENGINES
def test_fedavg_is_fine_tuned_at_home_in_the_last_rounds(engine: str) -> None:
    w = start()
    for _ in range(2):
        w = moved(w, [descend(w, k) for k in EVERYBODY])
    own = [w for _ in EVERYBODY]
    for _ in range(2):
        own = [descend(own[k], k) for k in EVERYBODY]
    found = simulated({"name": "fedavg-finetune", "home_rounds": 2}, engine, rounds=4)
    assert close(found.state.weights, w)
    assert all(close(found.state.personal[k], own[k]) for k in EVERYBODY)


@ENGINES
def test_mr_mtl_pulls_every_client_to_the_mean(engine: str) -> None:
    w, own = start(), [start() for _ in EVERYBODY]
    for _ in range(3):
        own = [pulled(own[k], k, to=w) for k in EVERYBODY]
        w = moved(w, own)
    found = simulated({"name": "mr-mtl", "strength": PULL}, engine)
    assert close(found.state.weights, w)
    assert all(close(found.state.personal[k], own[k]) for k in EVERYBODY)


@ENGINES
def test_ditto_trains_a_model_beside_the_global_one(engine: str) -> None:
    w, own = start(), [start() for _ in EVERYBODY]
    for _ in range(3):
        own = [pulled(own[k], k, to=w) for k in EVERYBODY]
        w = moved(w, [descend(w, k) for k in EVERYBODY])
    found = simulated({"name": "ditto", "strength": PULL}, engine)
    assert close(found.state.weights, w)
    assert all(close(found.state.personal[k], own[k]) for k in EVERYBODY)
    assert close({n: v[0] for n, v in found.method.personalise(found.state, [2], 3).items()}, own[2])


@ENGINES
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_both_engines_agree_under_record_privacy(engine: str, momentum: float) -> None:
    """And without a pull MR-MTL's clients train as if they were alone, noise and all."""
    sections: dict[str, dict[str, Any]] = {
        "privacy": {"mechanism": "record", "clip": 1.0, "noise_multiplier": 0.5},
        "train": {"batch_size": 4, "momentum": momentum, "server_learning_rate": 1.0},
    }
    for method in ({"name": "mr-mtl", "strength": PULL}, {"name": "ditto", "strength": PULL}):
        loop, other = (simulated(method, each, 2, **dict(sections)) for each in ("loop", engine))
        assert all(close(other.state.personal[k], loop.state.personal[k]) for k in EVERYBODY)


def test_an_unpulled_client_of_mr_mtl_trains_as_one_alone() -> None:
    none: dict[str, Any] = {"mechanism": "none", "noise_multiplier": None}
    alone = simulated({"name": "local"}, "batched", privacy=none, train={"batch_size": 4})
    pulled_by_nothing = simulated({"name": "mr-mtl", "strength": 0.0}, "batched", privacy=none, train={"batch_size": 4})
    for k in EVERYBODY:
        assert close(pulled_by_nothing.state.personal[k], alone.state.personal[k])


@pytest.mark.parametrize("name", ["mr-mtl", "ditto"])
def test_a_client_at_its_cap_sends_nothing_of_the_model_that_it_keeps(name: str) -> None:
    capped: dict[str, Any] = {"privacy": {"participation_cap": 1}}
    once, thrice = (simulated({"name": name}, "batched", rounds, **dict(capped)) for rounds in (1, 3))
    assert not close(once.state.weights, start())
    assert close(thrice.state.weights, once.state.weights)
    assert all(close(thrice.state.personal[k], once.state.personal[k]) for k in EVERYBODY)


def test_every_private_step_is_counted() -> None:
    """Local training, MR-MTL and fine-tuning spend what FedAvg spends; Ditto trains twice."""
    fedavg = epsilons({"name": "fedavg"}, "record")
    for name in ("local", "mr-mtl", "fedavg-finetune"):
        more = {"home_rounds": 2} if name == "fedavg-finetune" else {}
        assert epsilons({"name": name} | more, "record") == fedavg
    twice = parse_experiment(
        table(
            {"name": "fedavg"},
            privacy={"mechanism": "record", "clip": 1.0, "noise_multiplier": 2.0},
            train={"rounds": 4, "batch_size": 4, "local_epochs": 6},
        )
    )
    assert epsilons({"name": "ditto"}, "record")["server"] == planned_rows(twice, list(SIZES))[2].epsilon


@pytest.mark.parametrize("mechanism", ["distributed", "central"])
def test_at_user_level_only_averages_are_released(mechanism: str) -> None:
    fedavg = epsilons({"name": "fedavg"}, mechanism)
    for name in ("mr-mtl", "ditto"):
        assert epsilons({"name": name}, mechanism) == fedavg
    assert epsilons({"name": "fedavg-finetune", "home_rounds": 3}, mechanism) == fedavg, "an upper bound"


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match=r'^privacy.mechanism: "distributed" hides .* expected "record" or "none"$'):
        parse_experiment(table({"name": "local"}))
    with pytest.raises(UsageError, match=r"^method.home_rounds: 4, expected fewer than the 4 train.rounds$"):
        parse_experiment(table({"name": "fedavg-finetune", "home_rounds": 4}, train={"rounds": 4}))

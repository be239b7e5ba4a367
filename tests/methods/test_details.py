"""Small things that methods must get right beside their oracles."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fedceo
from fedceo.errors import UsageError
from fedceo.experiment.file import parse_experiment
from fedceo.methods.base import State
from fedceo.methods.fedceo import FedCEO, FedCEOSettings
from fedceo.methods.server import Server
from fedceo.models import build_model, parameters_of
from fedceo.simulation.preparing import prepare as prepare_experiment
from fedceo.simulation.rounds import Simulation
from fedceo.simulation.summary import global_model_caveat
from fedceo.training.batched.cohort import Call
from fedceo.training.batched.trainer import BatchedTrainer
from fedceo.training.work import ALL_RECORDS, local_work
from tests.support.small_runs import changed


def prepare(table: dict[str, Any]) -> Simulation:
    return prepare_experiment(parse_experiment(table))


@pytest.mark.parametrize("method", [{"name": "centaur"}, {"name": "jain-anil"}])
def test_a_model_of_one_layer_leaves_nothing_to_share(method: dict[str, Any]) -> None:
    table = changed(model={"name": "logistic"}) | {"method": method}
    with pytest.raises(UsageError, match="the model has only one"):
        fedceo.run(table)
    assert prepare(table | {"method": {"name": "centaur", "personal": "none"}})


@pytest.mark.parametrize(
    "method, mechanism, words",
    [
        ({"name": "centaur"}, "distributed", "nobody has, and that no epsilon covers"),
        ({"name": "jain-anil"}, "record", "nobody has"),
        ({"name": "centaur", "personal": "none"}, "distributed", None),
        ({"name": "fedceo"}, "distributed", None),
    ],
)
def test_it_is_said_where_nobody_has_the_global_model(
    method: dict[str, Any], mechanism: str, words: str | None
) -> None:
    experiment = parse_experiment(changed(privacy={"mechanism": mechanism}) | {"method": method})
    said = global_model_caveat(experiment)
    assert said is None if words is None else said is not None and said.endswith((words, "never noised"))


def test_heads_are_added_up_in_one_order() -> None:
    simulation = prepare(changed() | {"method": {"name": "centaur"}})
    rng = torch.Generator().manual_seed(0)
    own = {client: {"head": torch.randn(50, generator=rng)} for client in range(9)}
    there, back = (
        simulation.method.global_model(State({}, {client: own[client] for client in order}))["head"]
        for order in (range(9), range(8, -1, -1))
    )
    assert torch.equal(there, back)
    assert torch.allclose(there, torch.stack([head["head"] for head in own.values()]).mean(0))


@pytest.mark.parametrize("schedule, half", [("constant", 1.0), ("linear", 0.505), ("cosine", 0.505)])
def test_the_rate_of_clients_follows_its_schedule(schedule: str, half: float) -> None:
    experiment = parse_experiment(changed(train={"rounds": 11, "learning_rate": 0.2, "schedule": schedule}))
    rates = [local_work(experiment.train, t).learning_rate for t in (1, 6, 11)]
    assert rates == pytest.approx([0.2, 0.2 * half, 0.2 if schedule == "constant" else 0.002])
    ends = [fedceo.run(changed(train={"rounds": 3, "schedule": name})).weights for name in (schedule, "constant")]
    assert all(torch.equal(ends[0][name], w) for name, w in ends[1].items()) == (schedule == "constant")


def test_clients_weigh_as_many_records_as_they_have() -> None:
    """Two clients, one with three times the records of the other, without noise: the mean is theirs, weighted."""
    table = changed(data={"clients": 2, "partition": "dirichlet"}, cohort={"size": 2}, train={"rounds": 1})
    table |= {"privacy": {"mechanism": "none"}, "method": {"name": "fedavg"}}
    equal, weighted = (prepare(table | {"train": table["train"] | {"weighting": w}}) for w in ("equal", "records"))
    sizes = weighted.federation.sizes.double()
    assert sizes[0] != sizes[1]
    starts = {name: torch.stack([w, w]) for name, w in weighted.state.weights.items()}
    trained = weighted.trainer.train(starts, [0, 1], 1, weighted.phases(1)[0]).weights
    for simulation, shares in ((equal, torch.ones(2)), (weighted, sizes)):
        simulation.step()
        share = (shares / shares.sum()).float()
        for name, w in simulation.state.weights.items():
            assert torch.allclose(w, torch.tensordot(share.to(w.device), trained[name], 1), atol=1e-5)


def test_adam_knows_how_many_updates_it_has_seen() -> None:
    """With equal updates the corrected moments are the update itself in every round, so that every move is one."""
    server, state = Server("adam", 1.0), State({"w": torch.zeros(3, dtype=torch.float64)})
    for t in range(1, 6):
        weights, moments = server.apply(state.weights, {"w": state.weights["w"] + 0.25}, state.server)
        state = State(weights, server=moments)
        assert torch.allclose(state.weights["w"], torch.full((3,), float(t), dtype=torch.float64), rtol=0.03)


def test_an_optimiser_of_the_server_keeps_the_shared_step_of_ppsgd() -> None:
    """Adam's first move is one in every entry, whatever the gradient: what is left is alpha eta."""
    moves = []
    for alpha in (1.0, 0.1, 0.01, 0.0):
        table = changed(train={"server_optimizer": "adam", "server_learning_rate": 0.5, "rounds": 1})
        table |= {"method": {"name": "ppsgd", "form": "gradient", "alpha": alpha}}
        simulation = prepare(table)
        before = {name: w.clone() for name, w in simulation.state.weights.items()}
        simulation.step()
        moves.append(max(float((w - before[name]).abs().max()) for name, w in simulation.state.weights.items()))
    assert moves == pytest.approx([0.5, 0.05, 0.005, 0.0], rel=0.02, abs=1e-7)


def test_a_smoother_elsewhere_stays_when_the_clip_moves() -> None:
    simulation = prepare(changed(privacy={"clipping": "adaptive"}))
    trainer = simulation.trainer
    asked: list[int] = []

    def elsewhere(tensors: Sequence[Tensor], thresholds: Sequence[float]) -> list[Tensor]:
        asked.append(len(tensors))
        return list(tensors)

    simulation.work_elsewhere(trainer, elsewhere, dict)
    simulation.follow_clip(0.5)
    for _ in range(4):
        simulation.step()
    assert simulation.method.setup.clip != 1.0 and len(asked) == 1, "the fourth round smooths"


def test_batches_of_all_records_need_room_for_the_largest_client_only() -> None:
    simulation = prepare(changed(train={"engine": "batched"}))
    trainer = simulation.trainer
    assert isinstance(trainer, BatchedTrainer)
    work = local_work(simulation.experiment.train, 1)
    largest = int(simulation.federation.sizes.max())
    calls = (Call(trainer.context, {}, [], 1, replace(work, batch_size=size)) for size in (ALL_RECORDS, largest))
    full, same = (trainer._clients_at_once(call, None) for call in calls)
    assert full == same > 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_smooths_what_a_cpu_smooths_its_small_layers_among_them() -> None:
    method = FedCEO(FedCEOSettings(strength=0.6))
    model = parameters_of(build_model("lenet5", (3, 32, 32), 10, 0))
    noisy = {name: w + 0.03 * torch.randn(5, *w.shape) for name, w in model.items()}
    smoothed = method.filter({name: w.cuda() for name, w in noisy.items()}, 10, 5)
    for name, w in method.filter(noisy, 10, 5).items():
        assert smoothed[name].is_cuda
        assert float((smoothed[name].cpu() - w).norm()) <= 2e-5 * float(noisy[name].norm()), name


@pytest.mark.parametrize(
    "method", [{"name": "dp-fedsgd"}, {"name": "ppsgd", "form": "gradient"}, {"name": "jain-anil"}]
)
def test_a_schedule_of_local_steps_is_refused_where_there_are_none(method: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is of local steps, and method"):
        parse_experiment(changed(train={"schedule": "cosine"}) | {"method": method})
    assert parse_experiment(changed(train={"schedule": "cosine"}) | {"method": {"name": "ppsgd"}})


def test_positions_in_a_cohort_have_no_accuracy_of_their_clients_in_the_end() -> None:
    table = changed(train={"rounds": 4}, data={"local_test": 0.2}, evaluation={"every": 1})
    table |= {"method": {"name": "fedceo", "interval": 4, "restart": "slot"}}
    run = fedceo.run(table)
    assert run.history[-2]["local_accuracy"] is not None and run.history[-1]["local_accuracy"] is None
    assert run.result["accuracy"]["local_accuracy_last"] is None

"""CENTAUR's private power method."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fedceo
from fedceo.errors import UsageError
from fedceo.methods.base import State
from fedceo.methods.centaur import power_step
from fedceo.simulation.preparing import prepare
from fedceo.simulation.rounds import Simulation
from fedceo.tensors.weights import Weights
from tests.support.plain_rounds import close, run, table
from tests.support.small_federation import SIZES, federation


def flat_records(client: int) -> tuple[Tensor, Tensor]:
    data = federation()
    places = data.train[client]
    return data.inputs(data.x[places].double(), torch.float64).flatten(1), data.y[places]


@pytest.mark.parametrize("mechanism", ["distributed", "central"])
def test_power_rounds_find_the_directions_in_which_class_means_differ(mechanism: str) -> None:
    spread = torch.zeros(16, 16, dtype=torch.float64)
    for client in range(len(SIZES)):
        x, y = flat_records(client)
        for label in y.unique():
            away = x[y == label].mean(0) - x.mean(0)
            spread += (y == label).double().mean() * torch.outer(away, away) / len(SIZES)
    top = torch.linalg.eigh(spread).eigenvectors[:, -2:]
    data = federation()
    data = type(data)(**{**data.__dict__, "x": data.x.double(), "test_x": data.test_x.double()})
    method = {"name": "centaur", "initialisation": "power", "power_rounds": 25}
    sections: dict[str, dict[str, Any]] = {"train": {"rounds": 25}, "privacy": {"mechanism": mechanism, "clip": 1e6}}
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(16, 5, bias=False), torch.nn.ReLU(), torch.nn.Linear(5, 3)
    )
    found = fedceo.run(table(method, **sections), data=data, model=module)
    rows = found.weights["1.weight"]
    assert torch.allclose(rows @ rows.T, rows[0].norm() ** 2 * torch.eye(5, dtype=rows.dtype), atol=1e-9)
    basis = rows.T / rows[0].norm()
    assert float((top - basis @ (basis.T @ top)).norm()) < 1e-4
    assert all(record["initialisation"] for record in found.history)
    assert len(found.ledger.entries) == 25  # counted like any round


def test_power_rounds_are_noised_and_refused_where_they_cannot_be() -> None:
    method = {"name": "centaur", "initialisation": "power"}
    with pytest.raises(UsageError, match="needs a model whose first layer is linear"):
        run(method)
    with pytest.raises(UsageError, match="statistics that record privacy does not cover"):
        run(method, privacy={"mechanism": "record", "noise_multiplier": 1.0})
    digits = {"data": {"name": "digits", "clients": 20}, "cohort": {"size": 10}, "method": method}
    noisy = {"mechanism": "distributed", "noise_multiplier": 0.1, "clip": 2.0}
    learnt = fedceo.run(digits | {"privacy": noisy, "train": {"rounds": 15, "local_epochs": 2, "batch_size": 16}})
    assert learnt.result["accuracy"]["personal_accuracy_last"] > 0.4


def first_linear() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 5, bias=False), torch.nn.Linear(5, 3))


def test_a_power_step_is_the_spread_of_class_means_times_the_layer_and_zero_without_records() -> None:
    state = State({name: w.detach().double() for name, w in first_linear().named_parameters()})
    x, y = flat_records(2)
    spread = torch.zeros(16, 16, dtype=torch.float64)
    for label in y.unique():
        away = x[y == label].mean(0) - x.mean(0)
        spread += (y == label).double().mean() * torch.outer(away, away)
    wanted = {"1.weight": state.weights["1.weight"] @ spread}
    found = power_step(state, x.view(-1, 1, 4, 4), y)
    assert found.keys() == wanted.keys() and close(found, wanted)
    nothing = power_step(state, x[:0].view(0, 1, 4, 4), y[:0])
    assert torch.equal(nothing["1.weight"], torch.zeros(5, 16, dtype=torch.float64))


POWER = {"name": "centaur", "initialisation": "power", "power_rounds": 8}


def simulation(mechanism: str, **sections: dict[str, Any]) -> Simulation:
    sections = {"privacy": {"mechanism": mechanism, "noise_multiplier": 0.5, "participation_cap": 1}} | sections
    experiment = fedceo.parse_experiment(table(POWER, **sections, train={"rounds": 8, "precision": "float32"}))
    return prepare(experiment, federation(), first_linear())


def after(reported: tuple[int, ...], capped: tuple[int, ...]) -> Weights:
    begun = simulation("central")
    begun.step(replace(begun.draw(), reported=reported, capped=capped))
    return begun.state.weights


def test_a_client_at_its_cap_adds_nothing_to_a_power_round() -> None:
    nobody = after((), ())
    assert close(after((0, 2), (0, 2)), nobody)
    assert not close(after((0, 2), (0,)), nobody) and close(after((0, 2), (0,)), after((2,), ()))


@pytest.mark.parametrize("mechanism", ["distributed", "central"])
def test_power_rounds_without_clients(mechanism: str) -> None:
    begun = simulation(mechanism, cohort={"size": 1, "sampling": "poisson"})
    records = [begun.step() for _ in range(8)]
    empty = [record for record in records if record["reports"] == 0]
    assert empty, "choose a seed with an empty round"
    assert all(("initialisation" in record) == (mechanism == "central") for record in empty)

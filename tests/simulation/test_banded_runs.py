"""Runs with cyclic cohorts and noise that is correlated over their rounds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedceo
from fedceo.audit.rehearsal import KnownTrainer, Rehearsal, model_row
from fedceo.errors import UsageError
from fedceo.experiment.file import parse_experiment, to_toml
from fedceo.mechanisms.banded import factorise, released_spread, server_response
from fedceo.simulation.preparing import prepare
from fedceo.simulation.runs import resume
from fedceo.simulation.spending import settled, solve_noise
from tests.support.small_runs import KilledError, changed, kill, same_weights


def banded(**sections: dict[str, Any]) -> dict[str, Any]:
    """Thirty clients in five groups of six, twelve rounds."""
    cohort = {"sampling": "cyclic"} | sections.pop("cohort", {})
    privacy = {"mechanism": "central", "noise": "banded", "bands": 5} | sections.pop("privacy", {})
    method = sections.pop("method", {"name": "fedavg"})
    return changed(cohort=cohort, privacy=privacy, **sections) | {"method": method}


@pytest.mark.parametrize("optimizer, momentum", [("sgd", 0.0), ("momentum", 0.9)])
@pytest.mark.parametrize("sampling", [{"groups": 5}, {"groups": 3}])
def test_released_weights_have_the_noise_that_is_predicted(
    optimizer: str, momentum: float, sampling: dict[str, int]
) -> None:
    """To 2 %, after every round, where nobody's update is in the way."""
    groups = sampling["groups"]
    table = banded(
        model={"name": "mlp"},
        cohort=sampling,
        train={"server_optimizer": optimizer, "server_learning_rate": 0.5},
        privacy={"bands": groups, "clip": 0.4},
    )
    rehearsal = Rehearsal(prepare(parse_experiment(table)), KnownTrainer(np.random.default_rng(0), norms=(0.0,)))
    begun = model_row(rehearsal.simulation.state.weights)
    response = server_response(momentum, 12)
    predicted = 0.5 * 0.4 * 0.5 / 6 * released_spread(response, factorise(response, groups))
    measured = [float(np.std(model_row(rehearsal.play().after.weights) - begun)) for _ in range(12)]
    pooled = [np.mean(np.square(spread)) ** 0.5 for spread in (np.array(measured), predicted)]
    assert begun.size > 4000 and pooled[0] == pytest.approx(pooled[1], rel=0.02)
    assert measured == pytest.approx(predicted.tolist(), rel=0.05)
    independent = 0.5 * 0.4 * 0.5 / 6 * released_spread(response, (1.0,))
    assert measured[-1] < 0.75 * independent[-1]


@pytest.mark.parametrize("bands", [5, 3])
def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path, bands: int) -> None:
    table = banded(privacy={"bands": bands}, cohort={"groups": 5})
    whole = fedceo.run(table, out=tmp_path / "whole")
    with pytest.raises(KilledError):
        fedceo.run(
            table, out=tmp_path / "killed", on_round=lambda record: kill(record) if record["round"] == 8 else None
        )
    kept = load_file(tmp_path / "killed" / "checkpoint.safetensors")
    assert len({name.split("/")[1] for name in kept if name.startswith("noise/")}) == bands - 1
    again = resume(tmp_path / "killed")
    assert same_weights(whole, again) and whole.result["privacy"] == again.result["privacy"]


def test_without_its_memory_the_end_would_be_another(tmp_path: Path) -> None:
    """What the test above rests on."""
    table = banded()
    simulation, forgetful = (prepare(parse_experiment(table)) for _ in range(2))
    for _ in range(6):
        simulation.step()
        forgetful.step()
    forgetful.noise = {}
    simulation.step()
    forgetful.step()
    assert any(not torch.equal(w, forgetful.state.weights[name]) for name, w in simulation.state.weights.items())


def test_rounds_that_cannot_be_repeated_are_spent_and_their_noise_forgotten(tmp_path: Path) -> None:
    table = banded(privacy={"randomness": "system", "noise_multiplier": 2.0})
    with pytest.raises(KilledError):
        fedceo.run(table, out=tmp_path / "run", on_round=lambda record: kill(record) if record["round"] == 8 else None)
    begun: list[Any] = []
    again = resume(tmp_path / "run", on_start=lambda simulation: begun.append(dict(simulation.noise)))
    assert begun == [{}]
    rounds = [entry.round for entry in again.ledger.entries]
    assert rounds == [*range(1, 9), *range(6, 13)]
    planned = fedceo.run(table).result["privacy"][0]["epsilon"]
    assert again.result["privacy"][0]["epsilon"] > planned


def test_an_orderly_stop_keeps_the_noise(tmp_path: Path) -> None:
    table = banded(privacy={"randomness": "system"})
    taken: list[int] = []
    fedceo.run(
        table,
        out=tmp_path / "run",
        on_round=lambda record: taken.append(record["round"]),
        should_stop=lambda: len(taken) == 5,
    )
    begun: list[Any] = []
    resume(tmp_path / "run", on_start=lambda simulation: begun.append(sorted(simulation.noise)))
    assert begun == [[3, 4, 5, 6]]


def test_fedceo_with_one_model_runs_too() -> None:
    run = fedceo.run(banded(method={"name": "fedceo", "interval": 4, "restart": "mean"}))
    assert run.finished and run.result["privacy"][0]["sampling"] == "none"


def test_rounds_may_noise_other_tensors_than_those_before() -> None:
    """The power method sends statistics of one layer, and updates of all layers follow."""
    method = {"name": "centaur", "initialisation": "power", "power_rounds": 3, "personal": "none"}
    simulation = prepare(parse_experiment(banded(method=method)))
    for _ in range(4):
        simulation.step()
    assert len(simulation.noise[3]) < len(simulation.noise[4])


def test_bands_are_those_with_the_least_predicted_noise() -> None:
    table = banded(privacy={"bands": "auto", "noise_multiplier": None, "target_epsilon": 8.0})
    response = server_response(0.0, 12)

    def noise(bands: int) -> float:
        tried = parse_experiment(banded(privacy={"noise_multiplier": None, "target_epsilon": 8.0, "bands": bands}))
        spread = released_spread(response, factorise(response, bands))
        return solve_noise(tried, [1] * 30) * float(np.linalg.norm(spread))

    chosen = settled(parse_experiment(table), 30)
    assert chosen.privacy.bands == chosen.cohort.groups == min(range(1, 6), key=noise)


@pytest.mark.parametrize(
    "cohort, privacy, groups, bands",
    [
        ({}, {"bands": "auto"}, 5, 5),
        ({"groups": 3}, {"bands": None}, 3, 3),
        ({"groups": 4}, {"bands": 2}, 4, 2),
        ({"size": 2}, {"bands": "auto"}, 12, 12),
        ({"size": 4}, {"noise": "gaussian", "bands": None}, 7, None),
    ],
)
def test_what_is_left_open_is_settled(
    cohort: dict[str, Any], privacy: dict[str, Any], groups: int, bands: int | None
) -> None:
    simulation = prepare(parse_experiment(banded(cohort=cohort, privacy=privacy)))
    assert (simulation.experiment.cohort.groups, simulation.experiment.privacy.bands) == (groups, bands)


def test_experiments_without_groups_are_written_as_before() -> None:
    """Noise of seeded runs follows from this text."""
    text = to_toml(parse_experiment(changed()))
    assert "groups" not in text and "bands" not in text
    assert "bands" not in parse_experiment(changed()).model_dump_json()


@pytest.mark.parametrize(
    "sections, words",
    [
        ({"cohort": {"groups": 4}}, "privacy.bands is 5, more than cohort.groups, 4"),
        ({"cohort": {"sampling": "fixed"}}, 'needs cohort.sampling "cyclic"'),
        ({"cohort": {"sampling": "poisson"}}, 'needs cohort.sampling "cyclic"'),
        ({"cohort": {"sampling": "poisson", "groups": 3}}, 'groups belong to sampling "cyclic"'),
        ({"privacy": {"clipping": "adaptive"}}, 'needs privacy.clipping "flat"'),
        ({"privacy": {"clipping": "per_layer"}}, 'needs privacy.clipping "flat"'),
        ({"privacy": {"mechanism": "distributed"}}, 'belongs to mechanism "central"'),
        ({"privacy": {"mechanism": "record"}}, "privacy.noise"),
        ({"privacy": {"noise": "lattice"}}, 'bands belong to noise "banded"'),
        ({"privacy": {"bands": 0}}, "privacy.bands: expected a whole number"),
        ({"privacy": {"bands": 2.5}}, "privacy.bands: expected a whole number"),
        ({"privacy": {"mechanism": "distributed", "noise": "gaussian", "bands": None}}, 'cohort.sampling "cyclic"'),
        ({"method": {"name": "fedceo", "restart": "own"}}, "needs each client's upload"),
        ({"method": {"name": "fedceo", "restart": "mean", "threshold": "noise"}}, 'method.threshold "noise"'),
        ({"train": {"aggregation": "median"}}, "needs each client's upload"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_experiment(banded(**sections))
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("privacy", [{"bands": 6}, {"bands": 40}])
def test_groups_that_are_too_small_are_refused_before_anything_is_written(
    tmp_path: Path, privacy: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=r"cohort.size: 6, expected at most"):
        fedceo.run(banded(privacy=privacy), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()

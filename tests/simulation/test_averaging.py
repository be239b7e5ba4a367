"""Averages of the released models: what they are, that they survive kills, and where there is nothing to average."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fedceo
from fedceo.errors import UsageError
from fedceo.simulation.preparing import as_experiment, prepare
from fedceo.simulation.release import release
from tests.support.small_runs import TABLE, KilledError, changed, kill

ROUNDS = 7


def averaged(kind: str, method: str = "fedavg", **more: Any) -> dict[str, Any]:
    table = TABLE | {"method": {"name": method}}
    train = {"rounds": ROUNDS} | more.pop("train", {})
    return {**table, "train": table["train"] | train, "release": {"average": kind} | more}


def models_of(table: dict[str, Any]) -> list[dict[str, torch.Tensor]]:
    """The global model after every round, of the same experiment without an average."""
    simulation = prepare(as_experiment({name: part for name, part in table.items() if name != "release"}))
    models = []
    while simulation.round < simulation.experiment.train.rounds:
        simulation.step()
        models.append({name: w.double() for name, w in simulation.state.weights.items()})
    return models


@pytest.mark.parametrize("method", ["fedavg", "dp-fed-ls", "fedceo"])
def test_an_exponential_average_is_the_weighted_mean_of_all_models(method: str) -> None:
    table = averaged("ema", method, decay=0.7)
    run, models = fedceo.run(table), models_of(table)
    weights = torch.tensor([0.7**k for k in reversed(range(ROUNDS))], dtype=torch.float64)
    assert run.average is not None
    for name, found in run.average.items():
        expected = torch.tensordot(weights / weights.sum(), torch.stack([m[name] for m in models]), 1)
        assert torch.allclose(found.double(), expected, atol=1e-6)
        assert torch.equal(run.weights[name].double(), models[-1][name]), "the models themselves are as without it"


def test_a_tail_is_the_mean_of_the_last_models() -> None:
    table = averaged("tail", length=3)
    run, models = fedceo.run(table), models_of(table)
    assert run.average is not None
    for name, found in run.average.items():
        expected = torch.stack([m[name] for m in models[-3:]]).mean(0)
        assert torch.allclose(found.double(), expected, atol=1e-6)
    told = ["average_test_accuracy" in record for record in run.history]
    assert told == [False, False, False, False, False, True, True], (
        "measured in rounds 3, 6 and 7; the tail begins in 5"
    )


def test_a_round_that_releases_nothing_adds_no_model() -> None:
    table = averaged("tail", length=ROUNDS)
    table["cohort"] = {"size": 6, "dropout": 0.5}
    table["privacy"] = table["privacy"] | {"min_reports": 4}
    simulation = prepare(as_experiment(table))
    records = [simulation.step() for _ in range(ROUNDS)]
    released = sum("discarded" not in record for record in records)
    assert 0 < released < ROUNDS and simulation.average is not None and simulation.average.models == released


def test_the_average_is_measured_like_a_model() -> None:
    run = fedceo.run(averaged("ema"))
    simulation = prepare(run.experiment)
    assert run.average is not None
    found = simulation.evaluator.measure(run.average)
    assert run.result["accuracy"]["average"] == found["test_accuracy"] == run.history[-1]["average_test_accuracy"]
    assert run.history[-1]["average_validation_accuracy"] == found["validation_accuracy"]
    assert "average" not in fedceo.run(averaged("none")).result["accuracy"]


@pytest.mark.parametrize("kind, rounds", [("ema", 3), ("tail", 6)])
def test_killed_and_resumed_it_has_the_same_bits(tmp_path: Path, kind: str, rounds: int) -> None:
    table = averaged(kind, length=4) | {"checkpoint": {"every": 2}}
    whole = fedceo.run(table, out=tmp_path / "whole")

    def kill_in_time(record: dict[str, Any]) -> None:
        if record["round"] == rounds:
            kill(record)

    with pytest.raises(KilledError):
        fedceo.run(table, out=tmp_path / "part", on_round=kill_in_time)
    assert not (tmp_path / "part" / "average.safetensors").exists()
    ended = fedceo.resume(tmp_path / "part")
    assert ended.history == whole.history and whole.average is not None and ended.average is not None
    assert all(torch.equal(ended.average[name], w) for name, w in whole.average.items())
    files = [(tmp_path / each / "average.safetensors").read_bytes() for each in ("whole", "part")]
    assert files[0] == files[1]
    back = fedceo.load(tmp_path / "part").average
    assert back is not None and all(torch.equal(back[name], w) for name, w in whole.average.items())


def test_a_release_holds_the_average_and_its_accuracy(tmp_path: Path) -> None:
    run = fedceo.run(averaged("ema"), out=tmp_path / "run")
    card = release(tmp_path / "run", tmp_path / "out")
    found = load_file(tmp_path / "out" / "average.safetensors")
    assert run.average is not None and all(torch.equal(found[name], w) for name, w in run.average.items())
    assert card["average_test_accuracy"] == run.result["accuracy"]["average"]
    assert card["settings"]["release"] == {"average": "ema", "decay": 0.9, "length": 25}
    said = (tmp_path / "out" / "README.md").read_text()
    assert f"average.safetensors, with {100 * card['average_test_accuracy']:.2f} % on the same records" in said


def test_without_an_average_everything_is_as_before(tmp_path: Path) -> None:
    fedceo.run(changed(train={"rounds": 1}), out=tmp_path / "run")
    assert "[release]" not in (tmp_path / "run" / "experiment.toml").read_text()
    card = release(tmp_path / "run", tmp_path / "out")
    assert "average_test_accuracy" not in card and "release" not in card["settings"]
    assert not (tmp_path / "out" / "average.safetensors").exists()


@pytest.mark.parametrize(
    "table, said",
    [
        (averaged("tail"), "release.length is 25, more than the models of train.rounds, 7"),
        (averaged("ema", "centaur"), 'release.average "ema" is of global models, and with method "centaur" nobody'),
        (averaged("tail", "jain-anil", length=2), 'release.average "tail" is of global models'),
        (averaged("ema", decay=1.0), "release.decay: Input should be less than 1"),
        (averaged("mean"), "release.average: Input should be 'none', 'ema' or 'tail'"),
    ],
)
def test_averages_of_nothing_are_refused(table: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        fedceo.run(table, out=tmp_path / "run")
    assert said in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()

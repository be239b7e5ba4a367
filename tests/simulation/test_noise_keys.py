"""Noise that cannot be cancelled: runs with one seed share cohorts and batches, and no noise."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedceo
from fedceo.errors import UsageError
from fedceo.experiment.file import parse_experiment
from fedceo.simulation.preparing import prepare
from fedceo.simulation.rounds import Simulation
from fedceo.training.schedule import NOISE, PURPOSES, Schedule
from tests.support.edited_runs import take_checksums_out
from tests.support.small_federation import SmallConv, federation
from tests.support.small_runs import TABLE, changed

CLIP, COHORT = 0.7, 6
AT_ONCE: dict[str, Any] = {
    "data": {"name": "digits", "clients": 30},
    "cohort": {"size": COHORT},
    "train": {"rounds": 1, "local_epochs": 1, "batch_size": 16},
}


def released(sigma: float, method: str = "fedavg", mechanism: str = "distributed") -> Tensor:
    """All weights of the model after one round with seed 0, in float64."""
    privacy = {"mechanism": mechanism, "noise_multiplier": sigma, "clip": CLIP}
    run = fedceo.run(AT_ONCE | {"privacy": privacy, "method": {"name": method}})
    return torch.cat([w.flatten().double() for w in run.weights.values()])


def check_variance(residual: Tensor, expected: float) -> None:
    """expected: the variance in units of the noise of the mean at sigma 1, (C / K)^2."""
    found = float(residual.square().mean()) / (CLIP / COHORT) ** 2
    error = (2 / residual.numel()) ** 0.5  # relative standard deviation of a variance of so many normals
    assert abs(found / expected - 1) < 6 * error, f"variance {found:.4g}, expected {expected:g}"


@pytest.mark.parametrize("mechanism", ["distributed", "central"])
def test_twice_one_model_less_the_other_has_the_noise_of_both(mechanism: str) -> None:
    clean = released(0.0, mechanism=mechanism)
    one, two = released(1.0, mechanism=mechanism), released(2.0, mechanism=mechanism)
    check_variance(one - clean, 1.0)
    check_variance(two - clean, 4.0)
    check_variance(2 * one - two - clean, 2.0**2 * 1.0 + 4.0)


def test_the_difference_of_two_methods_has_the_noise_of_both() -> None:
    clean = released(0.0, "fedavg") - released(0.0, "fedprox")
    check_variance(released(1.0, "fedavg") - released(1.0, "fedprox") - clean, 2.0)


def test_no_two_noise_levels_of_a_sweep_share_noise() -> None:
    levels = (0.5, 1.0, 1.5, 2.0)
    clean = released(0.0)
    unit = torch.stack([(released(sigma) - clean) / sigma for sigma in levels])
    correlations = torch.corrcoef(unit) - torch.eye(len(levels))
    assert float(correlations.abs().max()) < 6 / unit.shape[1] ** 0.5


def simulation(table: dict[str, Any]) -> Simulation:
    return prepare(parse_experiment(table))


OTHER_RUNS: dict[str, dict[str, Any]] = {
    "sigma": changed(privacy={"noise_multiplier": 0.6}),
    "clip": changed(privacy={"clip": 0.9}),
    "method": TABLE | {"method": {"name": "fedavg"}},
    "setting": changed(method={"strength": 6.0}),
    "later setting": changed(method={"filter": "spare-mean"}),
    "learning rate": changed(train={"learning_rate": 0.2}),
    "rounds": changed(train={"rounds": 13}),
    "partition": changed(data={"partition": "shards"}),
    "cohort": changed(cohort={"dropout": 0.1}),
    "model": TABLE | {"model": {"name": "logistic"}},
}


@pytest.mark.parametrize("other", OTHER_RUNS)
def test_runs_that_differ_in_anything_share_no_noise(other: str) -> None:
    one, two = (simulation(table).schedule for table in (TABLE, OTHER_RUNS[other]))
    for purpose in PURPOSES:
        draws = [schedule.generator(purpose, 3, 4).standard_normal(4).tolist() for schedule in (one, two)]
        assert (draws[0] == draws[1]) == (purpose not in NOISE), purpose
    assert one.cohort(2, 30, 6, "fixed") == two.cohort(2, 30, 6, "fixed")
    assert torch.equal(one.batches(2, 3, 40, 2, 8), two.batches(2, 3, 40, 2, 8))


@pytest.mark.parametrize(
    "table",
    [
        changed(evaluation={"every": 7}),
        changed(checkpoint={"every": 7}),
        changed(train={"engine": "loop"}),
        changed(train={"device": "cpu"}),
        changed(privacy={"max_epsilon": 90.0, "observer": "server"}),
        TABLE | {"note": "again"},
    ],
)
def test_what_changes_nothing_that_is_released_changes_no_noise(table: dict[str, Any]) -> None:
    assert simulation(table).schedule == simulation(TABLE).schedule


def test_other_records_and_other_first_weights_bring_other_noise() -> None:
    table = parse_experiment(changed(data={"name": "digits", "clients": 4}, cohort={"size": 2}))
    torch.manual_seed(0)
    model = SmallConv()
    moved = SmallConv()
    moved.load_state_dict(model.state_dict())
    moved.fc.bias.data += 1e-3
    other = federation()
    other.x[0] += 1
    keys = [
        prepare(table, data, given).schedule.noise_key
        for data, given in ((federation(), model), (federation(), moved), (other, model), (federation(), model))
    ]
    assert len(set(keys)) == 3 and keys[0] == keys[3]


def test_a_schedule_without_a_key_draws_from_the_seed_alone() -> None:
    bare, keyed = Schedule(5), Schedule(5, noise_key="ab" * 32)
    assert bare.number("upload noise", 1, 2) != keyed.number("upload noise", 1, 2)
    assert bare.number("batches", 1, 2) == keyed.number("batches", 1, 2)


def begun_by_an_old_version(folder: Path, table: dict[str, Any]) -> Path:
    """An unfinished run whose files have no checksums; those of 0.1.0, the last version whose noise followed from the
    seed alone, are among them."""
    rounds = iter(range(100))
    fedceo.run(table, out=folder, should_stop=lambda: next(rounds) == 5)
    take_checksums_out(folder)
    return folder


def test_a_run_of_an_old_version_is_not_continued_with_other_noise(tmp_path: Path) -> None:
    old = begun_by_an_old_version(tmp_path / "old", TABLE)
    with pytest.raises(UsageError, match="begun by an earlier version of fedceo, which wrote no checksums"):
        fedceo.resume(old)

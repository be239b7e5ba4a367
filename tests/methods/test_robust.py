"""Robust aggregates against other implementations, in runs, and in the rows of those runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import fedceo
from fedceo.errors import UsageError
from fedceo.experiment.file import parse_experiment, to_toml
from fedceo.methods.robust import AGGREGATES
from fedceo.simulation.preparing import prepare
from fedceo.simulation.spending import planned_rows

TABLE: dict[str, Any] = {
    "data": {"name": "digits", "clients": 8},
    "cohort": {"size": 6},
    "train": {"rounds": 2, "local_epochs": 1, "batch_size": 16, "device": "cpu"},
    "privacy": {"mechanism": "distributed", "noise_multiplier": 0.5},
    "method": {"name": "fedavg"},
}
ROBUST = list(AGGREGATES)


def table(aggregation: str = "median", **sections: dict[str, Any]) -> dict[str, Any]:
    changed = TABLE | {name: TABLE.get(name, {}) | fields for name, fields in sections.items()}
    return changed | {"train": changed["train"] | {"aggregation": aggregation}}


def stack(clients: int) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(clients)
    shapes = {"a": (3, 2), "b": (), "c": (5,)}
    return {n: torch.randn(clients, *shape, generator=rng, dtype=torch.float64) for n, shape in shapes.items()}


@pytest.mark.parametrize("clients", [1, 2, 5, 10])
def test_entries_are_those_of_numpy_and_scipy(clients: int) -> None:
    found, given = {name: AGGREGATES[name](stack(clients)) for name in ROBUST}, stack(clients)
    for name, w in given.items():
        assert np.allclose(found["median"][name], np.median(w.numpy(), 0))
        assert np.allclose(found["trimmed_mean"][name], stats.trim_mean(w.numpy(), 0.2, 0))


@pytest.mark.parametrize("name", ROBUST)
def test_one_upload_moves_them_a_little_however_far_it_goes(name: str) -> None:
    near, far = stack(10), stack(10)
    for w in far.values():
        w[3] += 1e6
    moved = [float((AGGREGATES[name](far)[n] - AGGREGATES[name](near)[n]).abs().max()) for n in near]
    assert max(moved) < 1.0


@pytest.mark.parametrize("name", ROBUST)
def test_equal_uploads_stay_as_they_are(name: str) -> None:
    same = {n: w[:1].expand(6, *w.shape[1:]).clone() for n, w in stack(2).items()}
    assert all(torch.allclose(w, same[n][0], atol=1e-12) for n, w in AGGREGATES[name](same).items())


@pytest.mark.parametrize("method", [{"name": "fedavg"}, {"name": "fedceo", "restart": "mean", "interval": 1}])
def test_a_run_takes_the_aggregate_in_the_place_of_the_mean(method: dict[str, Any]) -> None:
    ends = {name: fedceo.run(table(name, method=method)).weights for name in ("mean", *ROBUST)}
    assert all(not torch.equal(ends["mean"][n], ends[name][n]) for name in ROBUST for n in ends["mean"])


def test_a_round_without_noise_is_the_median_of_what_clients_trained() -> None:
    simulation = prepare(parse_experiment(table(privacy={"noise_multiplier": 0.0, "clip": 1e6})))
    entry = simulation.draw()
    uploads = simulation.local_cohort(1)(simulation.state, entry).uploads
    simulation.step(entry)
    for name, w in simulation.state.weights.items():
        assert np.allclose(w, np.median(uploads.weights[name], 0), atol=1e-7)


def test_only_the_row_of_single_uploads_holds() -> None:
    """The server's row is that of the mean; nobody else is promised what the others' noise would have hidden."""
    sizes = [1] * 8
    mean = {row.observer: row for row in planned_rows(parse_experiment(table("mean")), sizes)}
    for name in ROBUST:
        rows = {row.observer: row for row in planned_rows(parse_experiment(table(name)), sizes)}
        assert rows["server"].epsilon == mean["server"].epsilon
        assert {rows[who].epsilon for who in ("outsider", "participant", "client")} == {None}
        assert "the server's row holds here" in rows["outsider"].assumption


def test_a_target_is_the_servers() -> None:
    target = {"noise_multiplier": None, "target_epsilon": 50.0}
    privacy = {name: value for name, value in (TABLE["privacy"] | target).items() if value is not None}
    wanted = TABLE | {"train": TABLE["train"] | {"aggregation": "median"}, "privacy": privacy}
    with pytest.raises(UsageError, match="no noise gives the outsider an epsilon: single uploads"):
        prepare(parse_experiment(wanted))
    assert prepare(parse_experiment(wanted | {"privacy": privacy | {"observer": "server"}})).noise_multiplier > 0


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"privacy": {"mechanism": "central"}}, 'needs each client\'s upload, which mechanism "central"'),
        ({"method": {"name": "fedceo"}}, 'train.aggregation: "median", expected "mean": method "fedceo" works on'),
        (
            {"train": {"weighting": "records"}, "privacy": {"mechanism": "none"}},
            'needs train.weighting "equal"',
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(sections: dict[str, Any], words: str) -> None:
    given = table(**sections)
    if given["privacy"]["mechanism"] == "none":
        given["privacy"] = {"mechanism": "none"}
    with pytest.raises(UsageError, match=words) as refused:
        prepare(parse_experiment(given))
    assert "\n" not in str(refused.value)


def test_the_mean_is_not_written_so_that_older_runs_keep_their_noise(tmp_path: Path) -> None:
    assert "aggregation" not in to_toml(parse_experiment(table("mean")))
    assert "aggregation" not in parse_experiment(table("mean")).model_dump_json()
    assert parse_experiment(table("mean")) == parse_experiment(TABLE)
    written = to_toml(parse_experiment(table("median")))
    assert 'aggregation = "median"' in written
    (tmp_path / "e.toml").write_text(written)
    assert fedceo.load_experiment(tmp_path / "e.toml").train.aggregation == "median"

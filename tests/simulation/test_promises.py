"""Promises made before a run are kept by its rows after it, and no row says less than the truth."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedceo
from fedceo.accounting.calibration import calibrate
from fedceo.accounting.plan import Plan, Realised, RecordSteps
from fedceo.accounting.rows import answer
from fedceo.cli import privacy as cli_privacy
from fedceo.data import build_federation, from_arrays
from fedceo.experiment.file import parse_experiment, to_toml
from fedceo.simulation.preparing import prepare
from fedceo.simulation.spending import client_sizes, solve_noise
from tests.support.independent_epsilons import sampled_gaussian_bounds
from tests.support.small_runs import changed


def epsilon(run: fedceo.Run, observer: str) -> float:
    return next(row["epsilon"] for row in run.result["privacy"] if row["observer"] == observer)


def uneven(**privacy: Any) -> dict[str, Any]:
    """Clients with one batch and with several: at little noise many steps cost more than a high rate."""
    table = changed(
        data={"clients": 20, "partition": "dirichlet", "alpha": 0.5},
        cohort={"size": 2},
        train={"rounds": 20, "local_epochs": 1, "batch_size": 64},
        privacy={"mechanism": "record", "noise_multiplier": 0.6, "delta": 1e-5} | privacy,
    )
    return table | {"method": {"name": "fedavg"}, "evaluation": {"every": 100}}


def record_epsilon_bounds(table: dict[str, Any], participations: Counter[int], sigma: float) -> tuple[float, float]:
    """The largest epsilon of all clients, from below and from above, by dp-accounting alone.

    A client with n records takes ceil(n/64) local steps a round, at a rate of one over that.
    """
    sizes = build_federation(parse_experiment(table).data, 0).sizes.tolist()
    kinds = {(math.ceil(sizes[client] / 64), count) for client, count in participations.items()}
    bounds = [sampled_gaussian_bounds(sigma, 1 / batches, batches * count, 1e-5) for batches, count in kinds]
    return max(lower for lower, _ in bounds), max(upper for _, upper in bounds)


@pytest.mark.slow
def test_record_rows_cover_every_client_whatever_the_participations() -> None:
    """D9: no client's own composition is above the row."""
    run = fedceo.run(uneven())
    lower, _ = record_epsilon_bounds(uneven(), run.ledger.participations, 0.6)
    assert epsilon(run, "server") >= lower


@pytest.mark.slow
def test_a_limit_holds_for_every_client() -> None:
    table = uneven(max_epsilon=9.0, observer="server")
    with pytest.raises(fedceo.UsageError, match=r"would raise the server's epsilon to 10\.13"):
        fedceo.run(table)  # two batches at little noise, and the first client that is drawn may have them
    enough = fedceo.run(uneven(max_epsilon=16.0, observer="server"))
    _, upper = record_epsilon_bounds(table, enough.ledger.participations, 0.6)
    assert enough.result["ended_early"] and upper <= 16.0


@pytest.mark.slow
def test_noise_is_solved_for_the_worst_client_at_once() -> None:
    """The two kinds cross near this target, where going from the one's noise to the other's never settled."""
    kinds, five = (RecordSteps(1.0, 1), RecordSteps(0.5, 2)), Realised(participations=5)
    base = Plan(20, 2, 20, 1.0, 1e-5, "record", record_steps=kinds)
    for target in (8.0, 17.9):
        both = calibrate(target, "server", base, five)
        each = [calibrate(target, "server", replace(base, record_steps=(kind,)), five) for kind in kinds]
        assert both == pytest.approx(max(each), rel=3e-4)
        bounds = [sampled_gaussian_bounds(both, kind.rate, 5 * kind.steps, 1e-5) for kind in kinds]
        assert max(lower for lower, _ in bounds) <= target <= 1.005 * max(upper for _, upper in bounds)


def test_a_record_that_is_gone_is_not_accounted_for() -> None:
    """Batches, steps and noise go by the number of records: one upload tells 64 records from 65."""
    steps = (RecordSteps(0.5, 10),)
    found = answer(Plan(10, 2, 5, 2.0, 1e-5, "record", adjacency="add-remove", record_steps=steps), "server")
    assert found.epsilon is None and "ask for zero-out" in found.assumption


@pytest.mark.parametrize("mechanism", ["central", "distributed"])
def test_who_is_at_its_cap_has_no_say_in_the_clip(mechanism: str) -> None:
    table = changed(
        data={"clients": 10},
        cohort={"size": 10},
        train={"rounds": 3},
        privacy={"mechanism": mechanism, "clipping": "adaptive", "participation_cap": 1, "count_noise": 1e6},
    )
    simulation = prepare(parse_experiment(table | {"method": {"name": "fedavg"}}))
    simulation.mechanism = replace(simulation.mechanism, count_noise=0.0, clip=1e6)
    simulation.step()
    before = simulation.clip
    simulation.step()
    assert before < 1e6, "all were within the clip, so it falls"
    assert simulation.ledger.entries[-1].capped == tuple(range(10)) and simulation.clip == before


@pytest.mark.parametrize(
    ("observer", "method"), [("participant", {"name": "fedavg"}), ("outsider", {"name": "fedceo", "interval": 4})]
)
def test_a_target_is_kept_when_poisson_cohorts_lose_some(observer: str, method: dict[str, Any]) -> None:
    table = changed(
        data={"clients": 60},
        cohort={"size": 10, "sampling": "poisson", "dropout": 0.2},
        privacy={"noise_multiplier": None, "target_epsilon": 2.8, "min_reports": 1, "observer": observer},
    )
    assert epsilon(fedceo.run(table | {"method": method}), observer) <= 2.8001


def test_what_dropout_leaves_of_a_poisson_cohort_is_a_smaller_one() -> None:
    smaller = Plan(60, 8, 12, 2.0, 1e-5, "distributed", "poisson", min_reports=4)
    lossy = Plan(60, 10, 12, 2.0, 1e-5, "distributed", "poisson", min_reports=4, dropout=0.2)
    for observer in ("outsider", "participant"):
        assert answer(lossy, observer).epsilon == pytest.approx(answer(smaller, observer).epsilon)


def test_a_target_for_the_server_is_kept_by_cohorts_that_nobody_can_foresee() -> None:
    for rounds in (1, 12):
        table = changed(
            train={"rounds": rounds},
            privacy={"noise_multiplier": None, "target_epsilon": 8.0, "observer": "server", "randomness": "system"},
        )
        assert epsilon(fedceo.run(table | {"method": {"name": "fedavg"}}), "server") <= 8.0001


def test_calibrating_a_file_is_solving_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = parse_experiment(uneven(noise_multiplier=None, target_epsilon=20.0, observer="server"))
    file = tmp_path / "mine.toml"
    file.write_text(to_toml(experiment))
    cli_privacy.calibrate(target=file, epsilon=20.0, observer="server", as_json=True)
    (said,) = json.loads(capsys.readouterr().out)
    assert said["noise_multiplier"] == solve_noise(experiment, client_sizes(experiment))
    assert said["epsilon"] <= 20.0001


@pytest.mark.parametrize("method", [{"name": "jain-anil"}, {"name": "centaur", "persist_heads": False}])
def test_who_is_at_its_cap_keeps_its_head(method: dict[str, Any]) -> None:
    table = changed(data={"clients": 6}, cohort={"size": 6}, train={"rounds": 4}, privacy={"participation_cap": 2}) | {
        "method": method
    }
    simulation = prepare(parse_experiment(table))
    for _ in range(2):
        simulation.step()
    fitted = {k: {name: w.clone() for name, w in part.items()} for k, part in simulation.state.personal.items()}
    simulation.step()
    assert simulation.ledger.entries[-1].own == ()
    assert all(
        torch.equal(w, simulation.state.personal[k][name]) for k, part in fitted.items() for name, w in part.items()
    )


def test_a_head_that_overflows_ruins_nobody_elses_model() -> None:
    rng = np.random.default_rng(0)
    way = rng.standard_normal((8, 3))
    x, test_x = (rng.standard_normal((n, 8)).astype(np.float32) for n in (400, 300))
    client = np.arange(400) % 8
    x[client == 5] *= np.float32(1e30)
    data = from_arrays(x, (x @ way).argmax(1), client=client, test_x=test_x, test_y=(test_x @ way).argmax(1))
    table = changed(cohort={"size": 8}, train={"rounds": 6, "local_epochs": 2}, privacy={"noise_multiplier": 0.01})
    table |= {"data": {"path": "a.npz", "partition": "natural"}, "method": {"name": "centaur", "head_epochs": 2}}
    run = fedceo.run(table, data=data)
    assert run.result["nonfinite_updates"] > 0
    assert run.history[-1]["test_loss"] is not None and run.history[-1]["test_accuracy"] > 0.5

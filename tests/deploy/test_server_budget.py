"""A federation under a privacy budget: when it ends, what is released, what is counted."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")

from flwr.app import Message

from fedceo.simulation.folder import RunFolder
from tests.support.flower_grid import experiment, local_grid, strategy


def test_the_budget_ends_the_run_before_the_round_that_would_exceed_it(tmp_path: Path) -> None:
    privacy = {"noise_multiplier": 4.0, "observer": "server"}
    free = experiment(method={"name": "fedavg"}, cohort={"size": 5}, privacy=privacy)
    rows = strategy(free, tmp_path / "free").run(local_grid(free))["privacy"]
    spent = next(row["epsilon"] for row in rows if row["observer"] == "server")
    given = experiment(method={"name": "fedavg"}, cohort={"size": 5}, privacy=privacy | {"max_epsilon": 0.8 * spent})
    result = strategy(given, tmp_path / "run").run(local_grid(given))
    assert 0 < result["rounds"] < 4
    assert "max_epsilon" in result["ended_early"]
    assert next(r["epsilon"] for r in result["privacy"] if r["observer"] == "server") <= 0.8 * spent


def test_fewer_reports_than_planned_may_exceed_the_budget_and_are_then_not_released(tmp_path: Path) -> None:
    """Two reports of five carry much less noise: known only after they came."""
    base: dict[str, Any] = {"noise_multiplier": 4.0, "observer": "outsider"}
    full = experiment(method={"name": "fedavg"}, cohort={"size": 5}, privacy=base)
    rows = strategy(full, tmp_path / "full").run(local_grid(full))["privacy"]
    planned = next(row["epsilon"] for row in rows if row["observer"] == "outsider")
    given = experiment(method={"name": "fedavg"}, cohort={"size": 5}, privacy=base | {"max_epsilon": 1.05 * planned})
    grid = local_grid(given)
    server = strategy(given, tmp_path / "run")
    for node in list(grid.nodes.values())[:3]:
        node.tamper = lambda reply: None if server.round == 2 else reply
    result = server.run(grid)
    assert [entry.released for entry in server.ledger.entries] == [True, True, False]
    assert result["ended_early"] and result["rounds"] == 3
    assert next(r["epsilon"] for r in result["privacy"] if r["observer"] == "outsider") <= 1.05 * planned


def test_nobody_is_there_in_the_round_after_a_smoothing_and_the_budget_is_not_touched(tmp_path: Path) -> None:
    given = experiment(cohort={"size": 5}, privacy={"noise_multiplier": 4.0, "max_epsilon": 50.0, "min_reports": 2})
    grid = local_grid(given)
    server = strategy(given, tmp_path / "run")

    def leave(reply: Message) -> Message:
        if server.round == 1:
            for node in grid.nodes.values():
                node.connected = False
        return reply

    grid.nodes[1000 - 7 * 4].tamper = leave  # the last to be asked in round 2, which smooths
    server.run(grid)
    assert [len(entry.reported) for entry in server.ledger.entries] == [5, 5, 0, 0]
    assert [entry.released for entry in server.ledger.entries] == [True, True, False, False]
    assert set(server.ledger.participations.values()) == {2}


def test_a_run_that_the_budget_ends_says_how_good_its_last_model_is(tmp_path: Path) -> None:
    privacy = {"noise_multiplier": 4.0, "observer": "server"}
    free = experiment(method={"name": "fedavg"}, cohort={"size": 5}, privacy=privacy, train={"rounds": 3})
    rows = strategy(free, tmp_path / "free").run(local_grid(free))["privacy"]
    spent = next(row["epsilon"] for row in rows if row["observer"] == "server")
    given = experiment(
        method={"name": "fedavg"},
        cohort={"size": 5},
        privacy=privacy | {"max_epsilon": 1.001 * spent},
        train={"rounds": 9},
        evaluation={"every": 9},
    )
    server = strategy(given, tmp_path / "run")
    result = server.run(local_grid(given))
    assert result["rounds"] == 3 and result["ended_early"]
    history = RunFolder(tmp_path / "run").history()
    assert [("test_accuracy" in record) for record in history] == [False, False, True]
    assert result["accuracy"]["last"] == history[-1]["test_accuracy"]

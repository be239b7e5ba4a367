"""Federations whose server is killed, or whose disk is full, at any step; flipped bytes in a federation's files."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import sklearn.datasets

pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")

from flwr.app import Message

from fedceo.errors import UsageError
from fedceo.simulation.folder import RunFolder
from fedceo.tensors.weights import Weights
from tests.support.failing_disk import failing_disk
from tests.support.federated_survival import (
    BUDGET,
    TINY,
    asking,
    differences_by_budget,
    federated,
    plain,
    with_budget,
)
from tests.support.flips import UNFINISHED, Flips, command, resumed
from tests.support.flower_grid import experiment, local_grid, strategy
from tests.support.small_runs import KilledError
from tests.support.survival import DIGITS, Survival, end_of


@pytest.fixture(autouse=True)
def _digits_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda: DIGITS)


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


def test_a_federation_that_its_budget_ended_can_be_killed_while_it_is_measured(tmp_path: Path) -> None:
    """The metrics were rewound and then written again; a kill between the two left one round too few."""
    with failing_disk(tmp_path / "whole", 0, "full") as steps:
        with_budget(tmp_path / "whole")
    result = RunFolder(tmp_path / "whole").result()
    assert result["ended_early"] and result["rounds"] == 6
    last = max(number for number, step in enumerate(steps, 1) if "metrics.jsonl" in step)
    saved = max(number for number, step in enumerate(steps, 1) if step == "replace checkpoint.safetensors.part")
    for step in range(saved + 2, last + 1):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        with failing_disk(tmp_path / "out", step, "full"), pytest.raises(UsageError, match="No space left"):
            with_budget(tmp_path / "out")
        with_budget(tmp_path / "out")
        assert differences_by_budget(end_of(tmp_path / "out"), end_of(tmp_path / "whole")) == []


def test_a_run_that_missing_reports_ended_does_not_go_on_after_a_kill(tmp_path: Path) -> None:
    """Two reports of five carry too little noise for the budget, which the next round alone would not tell."""
    privacy = {"noise_multiplier": 4.0, "observer": "outsider"}
    sections: dict[str, Any] = TINY | {
        "data": {"clients": 5}, "cohort": {"size": 5}, "train": {"rounds": 4}, "method": {"name": "fedavg"},
        "checkpoint": {"every": 1},
    }  # fmt: skip
    full = experiment(**sections, privacy=privacy)
    federated(full, tmp_path / "full")
    rows = RunFolder(tmp_path / "full").result()["privacy"]
    planned = next(row["epsilon"] for row in rows if row["observer"] == "outsider")
    given = experiment(**sections, privacy=privacy | {"max_epsilon": 1.02 * planned})
    server, grid = strategy(given, tmp_path / "run"), local_grid(given)
    for node in list(grid.nodes.values())[:3]:
        node.tamper = lambda reply: None if server.round == 2 else reply

    def killed(result: dict[str, Any], fixed: Weights) -> None:
        raise KilledError

    server.log.finish = killed  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        server.run(grid)
    server.log.release()
    federated(given, tmp_path / "run")
    result = RunFolder(tmp_path / "run").result()
    assert result["rounds"] == 3 and result["ended_early"] and result["accuracy"]["last"] is not None


def test_a_folder_that_is_removed_is_not_made_anew(tmp_path: Path) -> None:
    server, grid = strategy(BUDGET, tmp_path / "run"), local_grid(BUDGET)

    def remove(reply: Message) -> Message:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return reply

    grid.nodes[1000].tamper = remove
    with pytest.raises(UsageError, match="was removed while the run was writing to it"):
        server.run(grid)
    server.log.release()
    assert not list(tmp_path.iterdir())


def test_what_was_asked_for_counts_before_anybody_goes_on(tmp_path: Path) -> None:
    asking(tmp_path / "run")
    before = RunFolder(tmp_path / "run").ledger(repeatable=False)
    assert before.entries[-1].unused and not before.entries[-1].released
    RunFolder(tmp_path / "run").mend()
    assert RunFolder(tmp_path / "run").ledger(repeatable=False).entries == before.entries
    assert not (tmp_path / "run" / "asked.json").exists()


def test_a_line_can_be_taken_out_of_the_keys(tmp_path: Path) -> None:
    asking(tmp_path / "run")
    nodes = tmp_path / "run" / "nodes.json"
    keys = json.loads(nodes.read_text())
    assert next(iter(keys)) == "sha256" and set(keys) == {"sha256", "0", "1", "2"}
    nodes.write_text(json.dumps({name: key for name, key in keys.items() if name != "1"}))
    with pytest.raises(UsageError, match=r"nodes\.json: does not match its checksum"):
        plain(tmp_path / "run")
    nodes.write_text(json.dumps({name: key for name, key in keys.items() if name not in ("1", "sha256")}))
    assert set(RunFolder(tmp_path / "run").nodes()) == {0, 2}
    plain(tmp_path / "run")
    assert RunFolder(tmp_path / "run").finished


def test_an_unfinished_federation_without_keys_is_accounted_for(tmp_path: Path) -> None:
    strategy(BUDGET, tmp_path / "run").log.release()
    assert '"observer"' in str(command("privacy", "account", "FOLDER", "--json")(tmp_path / "run"))


@forks
def test_a_few_steps_of_writing_that_fail(tmp_path: Path) -> None:
    survival = Survival(plain, tmp_path)
    for step in range(2, survival.steps(), 31):
        survival.fail(step, "exit")
    assert survival.failures == []


@forks
@pytest.mark.slow
@pytest.mark.parametrize("has_budget", [False, True])
def test_many_steps_and_many_kills(tmp_path: Path, has_budget: bool) -> None:
    survival = Survival(with_budget, tmp_path, differences_by_budget) if has_budget else Survival(plain, tmp_path)
    rng = random.Random(4)
    assert sum(survival.kill(3, rng) for _ in range(8)) > 8
    for step in range(1, survival.steps() + 1, 6):
        survival.fail(step, "exit")
        survival.fail(step, "full")
    assert survival.failures == []


@pytest.mark.parametrize("count", [8, pytest.param(64, marks=pytest.mark.slow)])
def test_flips_in_an_unfinished_federation(tmp_path: Path, count: int) -> None:
    asking(tmp_path / "run")
    tried = Flips(tmp_path / "run", UNFINISHED | {"resume": resumed(plain)})
    files = sorted(file.name for file in (tmp_path / "run").iterdir())
    assert {"asked.json", "nodes.json"} < set(files)
    rng = random.Random(5)
    for number in range(count):
        tried.flip(files[number % len(files)], rng)
    assert tried.failures == []

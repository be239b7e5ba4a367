"""The cells that tools/measure_paper.py runs: all that the paper has, tuned alike, each once."""

import importlib.util
import json
import pickle
import sys
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedceo.experiment.file import load_grid
from fedceo.studies.cells import find_experiments
from fedceo.studies.tune import changed

TOOLS = Path(__file__).parents[2] / "tools"


def program() -> ModuleType:
    """tools/measure_paper.py, which finds paper_blocks by itself."""
    spec = importlib.util.spec_from_file_location("measure_paper", TOOLS / "measure_paper.py")
    assert spec is not None and spec.loader is not None
    loaded = sys.modules["measure_paper"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


measure_paper = program()
blocks = sys.modules["paper_blocks"]


@pytest.mark.parametrize("block", blocks.BLOCKS, ids=lambda block: block.name)
def test_all_cells_of_a_block_are_there_and_tuned_with_equally_many_trials(block: Any) -> None:
    experiments = find_experiments(TOOLS.parent / "experiments" / f"{block.table}.toml", block.changes)
    assert all(any(fnmatchcase(name, pattern) for name in experiments) for pattern in block.cells)
    numbers = set()
    for name, experiment in experiments.items():
        trials = block.trials(name) or []
        tried = [changed(experiment, values) for values in trials]
        assert len({repr(each) for each in tried}) == len(tried), f"{name}: two trials are the same"
        assert not tried or block.finalists <= len(tried)
        numbers |= {len(tried)} if tried else set()
    assert len(numbers) <= 1, "some methods have more trials than others"
    assert pickle.loads(pickle.dumps(block)) == block, "it goes to another process"


def test_fedceo_is_searched_over_all_that_it_has() -> None:
    trials = blocks.whole_runs("iid/sigma-2.0/fedceo")
    fields = ("method.strength", "method.ratio", "method.interval", "method.restart", "train.learning_rate")
    assert all(len({trial[field] for trial in trials}) > 1 for field in fields)
    assert {trial["method.restart"] for trial in trials} == {"own", "stored", "mean"}


def test_every_cell_of_the_papers_tables_has_a_result_or_a_block() -> None:
    root = TOOLS.parent
    for table in ("paper/heterogeneity", "paper/table1/cifar10-lenet5", "paper/intervals", "paper/more/cifar10-alexnet",
                  "paper/more/sent140-lstm", "paper/user/heterogeneity", "paper/user/cifar10-lenet5"):  # fmt: skip
        grid = load_grid(root / "experiments" / f"{table}.toml")
        file = root / "results" / f"{table}.json"
        have = (
            {each["name"].removesuffix("/tuned") for each in json.loads(file.read_text())} if file.exists() else set()
        )
        have |= {"sigma-1.0/interval-15", "sigma-1.5/interval-10", "sigma-2.0/interval-10"}  # those of Table 1
        planned = [pattern for block in blocks.BLOCKS if block.table == table for pattern in block.cells]
        assert grid is not None
        assert [c for c in grid.cells if c not in have and not any(fnmatchcase(c, p) for p in planned)] == []


SMALL = """
[data]
name = "digits"
clients = 10
validation = 0.2
[cohort]
size = 3
[train]
rounds = 4
local_epochs = 1
[privacy]
mechanism = "none"
[evaluation]
every = 1
[grid]
method = ["plain", "tuned"]
[grid.values.method]
plain = { method.name = "fedavg" }
tuned = { method.name = "fedavg" }
"""


class NoLock:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


def test_the_best_finalist_is_run_once_and_a_second_start_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "small.toml").write_text(SMALL)
    monkeypatch.setattr(measure_paper, "ROOT", tmp_path)
    monkeypatch.setattr(measure_paper, "LOCK", NoLock())
    rates = [{"train.learning_rate": rate} for rate in (1e-6, 0.3, 1e-5)]
    block = blocks.Block(
        "small", "small", ("*",), 1.0, (0, 1), lambda cell: rates if cell == "tuned" else None, length=2, finalists=2
    )

    def jobs() -> Any:
        return measure_paper.jobs_of(block, [], tmp_path / "results", tmp_path / "work", 8)

    plain, tuned = jobs()
    assert (plain.cells, tuned.cells) == ((("plain", (0, 1)),), (("tuned", (0, 1)),))
    assert plain.cost(4) == 8.0 and tuned.cost(4) == (3 * 0.5 + 2 + 1) * 4, "a finalist is the run of seed 0"
    for job in (plain, tuned):
        measure_paper.run_job(job)
    results = json.loads((tmp_path / "results" / "small.json").read_text())
    assert [(each["name"], each["seed"]) for each in results] == [
        ("plain", 0),
        ("plain", 1),
        ("tuned", 0),
        ("tuned", 1),
    ]
    assert {each["experiment"]["train"]["learning_rate"] for each in results[2:]} == {0.3}
    (trials,) = json.loads((tmp_path / "results" / "small.trials.json").read_text()).values()
    assert sum("at_full_length" in each for each in trials) == 2
    assert len(list((tmp_path / "work").rglob("result.json"))) == 2 + 3 + 2 + 1
    assert jobs() == []
    again = replace(block, seeds=(0, 1, 2))
    (_, job) = measure_paper.jobs_of(again, [], tmp_path / "results", tmp_path / "elsewhere", 8)
    measure_paper.run_job(job)
    assert len(list((tmp_path / "elsewhere").rglob("result.json"))) == 1, "trials of an earlier start are not run again"


def test_a_job_that_does_not_fit_is_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    block = next(block for block in blocks.BLOCKS if block.name == "alexnet")
    job = measure_paper.Job(block, (("sigma-1.0/fedceo", (0,)),), (), Path("none"), Path("none"), 8)
    assert job.cost() > 100
    measure_paper.carry_out([job], 1, seconds=100)
    assert "1 jobs are left" in capsys.readouterr().out

"""tools/measure.py: how tables are tuned, how a grid grows where its best trial is at an end, and what is run again."""

import importlib.util
import itertools
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
DIGITS = """
data = { name = "digits", clients = 20, validation = 0.1 }
cohort.size = 5
train = { rounds = 1, local_epochs = 1, batch_size = 8 }
privacy = { mechanism = "central", noise_multiplier = 1.0, clip = 0.5 }
method.name = "fedavg"
"""


def program() -> ModuleType:
    """tools/measure.py, which finds trial_grids by itself."""
    spec = importlib.util.spec_from_file_location("measure_tables", TOOLS / "measure.py")
    assert spec is not None and spec.loader is not None
    loaded = sys.modules["measure_tables"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


measure = program()
grids = sys.modules["trial_grids"]
CLIP, RATE = grids.CLIP, grids.RATE
combinations, grown, joined = grids.combinations, grids.grown, grids.joined
silos_grid, user_level_grid = grids.silos_grid, grids.user_level_grid


def test_methods_of_silos_begin_with_equally_many_trials() -> None:
    silos = TOOLS.parent / "experiments" / "parts" / "silos.toml"
    methods = tomllib.loads(silos.read_text())["grid"]["method"]
    assert sorted(methods) == sorted((*grids.SETTINGS, *grids.WITHOUT_SETTINGS))
    assert {len(combinations(silos_grid(method))) for method in methods} == {20}


def test_a_grid_does_not_grow_around_a_best_inside_it() -> None:
    assert grown(user_level_grid(clips=True), {RATE: 0.05, CLIP: 0.2}) is None


def test_a_grid_grows_by_one_value_at_each_end_where_the_best_lies() -> None:
    found = grown(user_level_grid(clips=True), {RATE: 0.2, CLIP: 0.05})
    assert found == {RATE: [0.01, 0.02, 0.05, 0.1, 0.2, 0.5], CLIP: [0.02, 0.05, 0.1, 0.2, 0.5, 1.0]}
    assert grown({RATE: [0.03, 0.1, 0.3, 1.0]}, {RATE: 1.0}) == {RATE: [0.03, 0.1, 0.3, 1.0, 3.0]}


def test_a_grid_stops_at_its_limits_and_at_settings_of_methods() -> None:
    assert grown({CLIP: [1.0, 2.0]}, {CLIP: 2.0}) is None  # 5 is beyond them
    assert grown({RATE: [0.1, 0.3], "method.alpha": [0.5, 1.0]}, {RATE: 0.1, "method.alpha": 1.0}) == {
        RATE: [0.03, 0.1, 0.3],
        "method.alpha": [0.5, 1.0],
    }


def test_trials_of_an_earlier_start_are_part_of_the_grid() -> None:
    assert joined({RATE: [0.1, 0.2]}, [{RATE: 0.5, "validation_accuracy": 0.3}]) == {RATE: [0.1, 0.2, 0.5]}


def test_growing_ends() -> None:
    """Whatever the scores: a best that is always the largest rate and the least clip."""
    grid, rounds = user_level_grid(clips=True), 0
    while further := grown(grid, {RATE: max(grid[RATE]), CLIP: min(grid[CLIP])}):
        grid, rounds = further, rounds + 1
    assert (max(grid[RATE]), min(grid[CLIP]), rounds) == (10.0, 0.01, 5)


def jobs(file: Path, out: Path, rates: str = "[0.1, 0.3]", seeds: tuple[int, ...] = (1,)) -> list[Any]:
    found: list[Any] = measure.jobs_of(file, [], ["*"], [f"train.learning_rate={rates}"], seeds, out)
    return found


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(measure, "HELD", {})
    path = tmp_path / "digits.toml"
    path.write_text(DIGITS)
    return path


def test_what_is_there_is_not_run_again(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "results.json"
    scores = iter([0.1, 0.2, 0.3, 0.25])  # of 0.1, 0.3, then 1 and 3
    monkeypatch.setattr(measure, "validation_score", lambda experiment, record: next(scores))
    (job,) = jobs(file, out)
    done, entries = measure.measure(job, deadline=float("inf"))
    assert [trial[RATE] for trial in done.tried] == [0.1, 0.3, 1.0, 3.0]
    assert [(each["seed"], each["experiment"]["train"]["learning_rate"]) for each in entries] == [(1, 1.0)]
    measure.write(out, done, entries)
    assert jobs(file, out) == []
    (again,) = jobs(file, out, seeds=(1, 2))
    assert again.lacks == [2] and again.next_grid is None


def test_a_cell_with_a_failed_trial_is_refused(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = jobs(file, tmp_path / "results.json")
    monkeypatch.setattr(measure, "run_all", lambda experiments: enumerate(["out of memory"] * len(experiments)))
    with pytest.raises(RuntimeError, match=r"0\.1.* failed: out of memory"):
        measure.measure(job, deadline=float("inf"))


def test_nothing_is_begun_after_the_deadline(file: Path, tmp_path: Path) -> None:
    (job,) = jobs(file, tmp_path / "results.json")
    assert measure.measure(job, deadline=0.0) is None


def test_trials_of_a_cell_that_was_stopped_are_not_run_again(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count for the experiment that they were of, and for no other."""
    out = tmp_path / "results.json"

    def stopping(experiments: Any) -> Any:
        yield from itertools.islice(real(experiments), 1)
        raise KeyboardInterrupt

    real = measure.run_all
    monkeypatch.setattr(measure, "run_all", stopping)
    (job,) = jobs(file, out)
    with pytest.raises(KeyboardInterrupt):
        measure.measure(job, deadline=float("inf"))
    (job,) = jobs(file, out)
    assert [trial[RATE] for trial in job.tried] == [0.1] and len(combinations(job.next_grid)) == 2
    file.write_text(DIGITS.replace("rounds = 1", "rounds = 2"))
    (job,) = jobs(file, out)
    assert not job.tried

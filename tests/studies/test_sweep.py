"""Sweeps: cells, what is skipped, resumed and refused, and the tables."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedceo
from fedceo.errors import UsageError
from fedceo.simulation.folder import RunFolder
from fedceo.studies.cells import Cell, experiment_files, find_cells
from fedceo.studies.results import results_of
from fedceo.studies.sweep import sweep
from fedceo.studies.table import COLUMNS, rows_of, show, to_csv, to_markdown

BASE = """# shared
[data]
name = "digits"
clients = 12
[cohort]
size = 4
[train]
rounds = 2
local_epochs = 1
batch_size = 32
[privacy]
mechanism = "central"
noise_multiplier = 0.5
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "base.toml").write_text(BASE)
    for name in ("fedavg", "fedprox"):
        (tmp_path / f"{name}.toml").write_text(f'# cell\nextends = ["parts/base.toml"]\n[method]\nname = "{name}"\n')
    return tmp_path


def test_files_extend_others_and_parts_are_no_experiments(folder: Path) -> None:
    assert [file.stem for file in experiment_files(folder)] == ["fedavg", "fedprox"]
    assert fedceo.load_experiment(folder / "fedprox.toml").cohort.size == 4


def test_what_a_file_says_wins_and_another_method_replaces_the_whole_one(folder: Path) -> None:
    (folder / "ceo.toml").write_text(
        'extends = ["parts/base.toml"]\n[method]\nname = "fedceo"\nrestart = "mean"\nratio = 1.5\n'
    )
    (folder / "other.toml").write_text('extends = ["ceo.toml"]\n[method]\nname = "fedavg"\n[train]\nrounds = 7\n')
    (folder / "same.toml").write_text('extends = ["ceo.toml"]\n[method]\nratio = 1.1\n')
    other, same = fedceo.load_experiment(folder / "other.toml"), fedceo.load_experiment(folder / "same.toml")
    assert other.method.name == "fedavg" and other.train.rounds == 7 and other.train.batch_size == 32
    assert same.method.model_dump()["ratio"] == 1.1 and same.method.model_dump()["restart"] == "mean"


@pytest.mark.parametrize(
    "text, words",
    [
        ('extends = ["bad.toml"]', "extends itself"),
        ('extends = ["nowhere.toml"]', "no such experiment file"),
        ("extends = 3", "expected a list of files"),
    ],
)
def test_bad_extensions(folder: Path, text: str, words: str) -> None:
    (folder / "bad.toml").write_text(text)
    with pytest.raises(UsageError, match=words):
        fedceo.load_experiment(folder / "bad.toml")


def test_cells_are_files_by_grid_by_seeds(folder: Path) -> None:
    cells = find_cells(folder, 3, ["train.rounds=1"], ["train.learning_rate=[0.1, 0.01]"], folder / "out")
    assert len(cells) == 2 * 2 * 3 and len({cell.folder for cell in cells}) == 12
    assert {cell.experiment.train.learning_rate for cell in cells} == {0.1, 0.01}
    assert {cell.experiment.seed for cell in cells} == {0, 1, 2}
    assert cells[0].name == "fedavg,train.learning_rate=0.1"


@pytest.mark.parametrize("grid", ["train.learning_rate", "train.learning_rate=0.1", "train.learning_rate=[]"])
def test_bad_grids(folder: Path, grid: str) -> None:
    with pytest.raises(UsageError, match=r"--grid .* expected section.field=\[value, ...\]"):
        find_cells(folder, 1, [], [grid], folder / "out")


def test_done_is_skipped_unfinished_is_resumed(folder: Path) -> None:
    cells = find_cells(folder, 2, [], [], folder / "out")
    fedceo.run(cells[0].experiment, out=cells[0].folder)
    fedceo.run(cells[1].experiment, out=cells[1].folder, should_stop=lambda: True)
    written = (cells[0].folder / "result.json").stat().st_mtime_ns
    seen: list[str] = []
    results = sweep(cells, jobs=1, on_cell=lambda cell, result, error: seen.append(str(cell.folder)))
    assert all(result is not None and result["rounds"] == 2 for result in results)
    assert (cells[0].folder / "result.json").stat().st_mtime_ns == written
    assert sorted(seen) == sorted(str(cell.folder) for cell in cells)
    again = fedceo.run(cells[1].experiment)
    assert results[1] is not None and results[1]["accuracy"] == again.result["accuracy"]


@pytest.mark.slow
def test_processes_give_the_same(folder: Path) -> None:
    one = sweep(find_cells(folder, 1, [], [], folder / "one"), jobs=1)
    two = sweep(find_cells(folder, 1, [], [], folder / "two"), jobs=2)
    assert [r and r["accuracy"] for r in one] == [r and r["accuracy"] for r in two]


def test_a_cell_that_fails_does_not_take_the_others_along(folder: Path) -> None:
    (folder / "bad.toml").write_text(
        'extends = ["parts/base.toml"]\n[model]\nname = "nothing"\n[method]\nname = "fedavg"\n'
    )
    errors: list[str] = []
    cells = find_cells(folder, 1, [], [], folder / "out")
    results = sweep(cells, jobs=1, on_cell=lambda cell, result, error: errors.extend([error] if error else []))
    assert [result is None for result in results] == [True, False, False]
    assert len(errors) == 1 and "unknown model 'nothing'" in errors[0]
    rows = rows_of(cells, results)
    assert rows[0]["seeds"] == 0 and rows[0]["last"] is None and "-" in to_markdown(rows)


def test_a_folder_with_another_experiment_is_refused(folder: Path) -> None:
    cells = find_cells(folder, 1, [], [], folder / "out")
    fedceo.run(cells[0].experiment, out=cells[0].folder)
    with pytest.raises(UsageError, match="holds a run of another experiment"):
        sweep(find_cells(folder, 1, ["train.rounds=1"], [], folder / "out"))


def test_tables_hold_mean_and_spread(folder: Path) -> None:
    cells = find_cells(folder, 2, [], [], folder / "out")
    results = sweep(cells, jobs=1)
    rows = rows_of(cells, results)
    lasts = [100 * r["accuracy"]["last"] for r in results[:2] if r is not None]
    assert rows[0]["last"] == pytest.approx(sum(lasts) / 2)
    assert rows[0]["last sd"] == pytest.approx(abs(lasts[0] - lasts[1]) / 2**0.5)
    assert rows[0]["epsilon server"] is None and rows[0]["epsilon outsider"] > 0
    read = list(csv.DictReader(to_csv(rows).splitlines()))
    assert list(read[0]) == list(COLUMNS) and read[1]["method"] == "fedprox"
    assert "±" in to_markdown(rows)


def test_an_average_has_a_column_where_there_is_one(folder: Path) -> None:
    cells = find_cells(folder, 2, ["release.average=ema"], [], folder / "out")
    results = sweep(cells, jobs=1)
    row = rows_of(cells, results)[0]
    averages = [100 * result["accuracy"]["average"] for result in results[:2] if result is not None]
    assert row["average"] == pytest.approx(sum(averages) / 2) and row["average sd"] is not None
    assert "| average |" in to_markdown([row]) and "average" not in to_markdown([row | {"average": None}])


def test_a_model_that_was_just_smoothed_does_not_stand_alone(folder: Path) -> None:
    method = '[method]\nname = "fedceo"\ninterval = 2\nrestart = "mean"\n'
    (folder / "fedceo.toml").write_text(f'extends = ["parts/base.toml"]\n{method}')
    cells = find_cells(folder, 1, ["evaluation.every=1", "train.rounds=2"], [], folder / "out")
    results = sweep(cells, jobs=1)
    rows = {row["experiment"]: row for row in rows_of(cells, results)}
    history = RunFolder(next(cell.folder for cell in cells if cell.name == "fedceo")).history()
    assert rows["fedceo"]["unsmoothed"] == 100 * history[0]["test_accuracy"] != rows["fedceo"]["last"]
    assert rows["fedavg"]["unsmoothed"] is None and "unsmoothed" in to_markdown(list(rows.values()))


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from fedceo.cli.app import main

    monkeypatch.setattr(
        "sys.argv", ["fedceo", "sweep", str(folder), "--out", str(folder / "out"), "--jobs", "1", "--json"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    printed = json.loads(capsys.readouterr().out)
    assert not ended.value.code and [row["experiment"] for row in printed["rows"]] == ["fedavg", "fedprox"]
    assert {f.name for f in (folder / "out").glob("table.*")} == {"table.csv", "table.md", "table.tex"}


AXES = """
[grid]
noise = ["low", "high"]
method = ["fedavg", "fedprox"]
[grid.values.noise]
low = { privacy.noise_multiplier = 0.2 }
high = { privacy.noise_multiplier = 0.6 }
[grid.values.method]
fedavg = { method.name = "fedavg" }
fedprox = { method.name = "fedprox" }
"""


def test_a_file_with_a_grid_lands_in_the_folders_of_a_folder_of_files(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(BASE + AXES)
    files = tmp_path / "files"
    for noise, sigma in (("low", 0.2), ("high", 0.6)):
        (files / noise).mkdir(parents=True)
        for method in ("fedavg", "fedprox"):
            text = BASE.replace("noise_multiplier = 0.5", f"noise_multiplier = {sigma}")
            (files / noise / f"{method}.toml").write_text(f'{text}[method]\nname = "{method}"\n')
    one = find_cells(tmp_path / "grid.toml", 2, [], ["seed=[3, 7]"], tmp_path / "out")
    other = find_cells(files, 2, [], ["seed=[3, 7]"], tmp_path / "out")
    assert len(one) == 4 * 2 * 2 and sorted(one, key=lambda cell: cell.folder) == sorted(
        other, key=lambda cell: cell.folder
    )


def test_the_command_runs_the_cells_of_a_grid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedceo.cli.app import main

    (tmp_path / "mine.toml").write_text(BASE + AXES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedceo", "sweep", "mine.toml", "--cell", "*/fedprox", "--jobs", "1", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = json.loads(capsys.readouterr().out)
    assert not ended.value.code and [row["experiment"] for row in printed["rows"]] == ["low/fedprox", "high/fedprox"]
    assert [row["sigma"] for row in printed["rows"]] == [0.2, 0.6]
    assert RunFolder(tmp_path / "runs" / "sweep" / "mine" / "high" / "fedprox" / "seed-0").finished


def test_what_a_sweep_leaves_can_be_traced_and_holds_failures(folder: Path) -> None:
    cells = find_cells(folder / "fedavg.toml", 2, ["evaluation.every=1"], [], folder / "out")
    results = [sweep(cells[:1], jobs=1)[0], None]
    good, bad = json.loads(json.dumps(results_of(cells, results, {1: "went wrong"})))
    assert fedceo.run(good["experiment"]).result["accuracy"] == good["result"]["accuracy"], "it can be made again"
    assert good["curves"]["round"] == [1, 2] and len(good["curves"]["test_accuracy"]) == 2
    assert good["curves"]["test_accuracy"][-1] == good["result"]["accuracy"]["last"]
    assert {"machine", "date", "versions", "privacy", "seconds"} <= set(good["result"])
    assert bad == {"name": "fedavg", "seed": 1, "error": "went wrong", "experiment": bad["experiment"]}


def test_values_that_come_twice_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="comes twice, expected values that differ"):
        find_cells(folder, 1, [], ["train.learning_rate=[0.1, 0.10]"], folder / "out")


def test_other_data_of_the_same_shape_is_another_experiment(folder: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        rng = np.random.default_rng(seed)
        images, labels = rng.normal(size=(240, 1, 4, 4)).astype(np.float32), rng.integers(3, size=240)
        np.savez(folder / f"{name}.npz", x=images, y=labels)

    def cells(name: str) -> list[Cell]:
        text = BASE.replace('name = "digits"', f"path = '{folder / name}.npz'")
        (folder / "mine.toml").write_text(f'{text}[method]\nname = "fedavg"\n')
        return find_cells(folder / "mine.toml", 1, [], [], folder / "out")

    assert sweep(cells("a"), jobs=1)[0] is not None
    with pytest.raises(UsageError, match="holds a run of another experiment"):
        sweep(cells("b"), jobs=1)


def test_a_stack_is_a_sweep_in_one_process(folder: Path) -> None:
    """Cells of two models; what is done stays, what is unfinished is resumed, what fails is told."""
    (folder / "bad.toml").write_text(
        'extends = ["parts/base.toml"]\n[model]\nname = "nothing"\n[method]\nname = "fedavg"\n'
    )
    (folder / "linear.toml").write_text(
        'extends = ["parts/base.toml"]\n[model]\nname = "logistic"\n[method]\nname = "fedavg"\n'
    )
    cells = find_cells(folder, 2, [], [], folder / "out")
    fedceo.run(cells[2].experiment, out=cells[2].folder)
    fedceo.run(cells[3].experiment, out=cells[3].folder, should_stop=lambda: True)
    errors: dict[str, str] = {}

    def on_cell(cell: Cell, result: dict[str, Any] | None, error: str | None) -> None:
        if error is not None:
            errors[cell.folder.name] = error

    results = sweep(cells, on_cell=on_cell, stack=3)
    assert [result is None for result in results] == [True, True, *[False] * 6] and len(errors) == 2
    for cell, result in zip(cells[2:], results[2:], strict=True):
        assert result is not None and result["accuracy"] == fedceo.run(cell.experiment).result["accuracy"]
    with pytest.raises(UsageError, match="expected no --jobs"):
        sweep(cells, jobs=2, stack=2)


@pytest.mark.parametrize("epsilon", [0.001, 2.0, 2.0049, 225.3449, 7.999])
def test_no_epsilon_is_shown_too_small(epsilon: float) -> None:
    assert 0 <= float(show({"epsilon outsider": epsilon}, "epsilon outsider")) - epsilon < 0.0101

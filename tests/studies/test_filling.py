"""Results files that are filled a few runs at a time: what is lacking, what it would cost, what is refused."""

import json
from pathlib import Path

import pytest

from fedceo.cli.app import main
from fedceo.errors import UsageError
from fedceo.studies.cells import find_cells
from fedceo.studies.filling import expected_seconds, lacking, read_entries

FILE = """[data]
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
[method]
name = "fedavg"
[grid]
sigma = ["low", "high"]
[grid.values.sigma]
low = { privacy.noise_multiplier = 0.5 }
high = { privacy.noise_multiplier = 1.0 }
"""


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "grid.toml"
    file.write_text(FILE)
    return file


def called(*words: str) -> int:
    """The exit code of a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fedceo", *words])
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0)
    return 0


def test_a_file_is_filled_in_parts_and_no_run_is_taken_twice(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, sweep = Path("found/results.json"), ("sweep", "grid.toml", "--fill", "found/results.json", "--jobs", "1")
    assert called(*sweep, "--cell", "low", "--json") == 0
    (first,) = read_entries(file)
    assert (first["name"], first["seed"]) == ("low", 0)
    cells = find_cells(grid, 2, [], [], Path("elsewhere"))
    left = lacking(cells, read_entries(file), file)
    assert [(cell.name, cell.experiment.seed) for cell in left] == [("low", 1), ("high", 0), ("high", 1)]
    assert expected_seconds(left[0], read_entries(file)) == pytest.approx(first["result"]["seconds"])
    capsys.readouterr()
    assert called(*sweep, "--seeds", "2", "--missing", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["lacking"]) == 3 and len(read_entries(file)) == 1
    assert called(*sweep, "--seeds", "2", "--out", "another", "--json") == 0
    entries = read_entries(file)
    places = [(each["name"], each["seed"]) for each in entries]
    assert places == [("high", 0), ("high", 1), ("low", 0), ("low", 1)] and first in entries
    assert len([*Path("another").rglob("result.json")]) == 3, "the run that was there is not run again"
    capsys.readouterr()
    assert called(*sweep, "--seeds", "2") == 0
    assert "0 runs are lacking" in capsys.readouterr().out


def test_two_experiments_of_one_name_are_not_mixed(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("sweep", "grid.toml", "--fill", "results.json", "--cell", "low", "--jobs", "1", "--json") == 0
    before = Path("results.json").read_bytes()
    capsys.readouterr()
    assert called("sweep", "grid.toml", "--fill", "results.json", "--set", "train.learning_rate=0.5") == 2
    assert "low, seed 0 with another train.learning_rate" in capsys.readouterr().err
    assert Path("results.json").read_bytes() == before


@pytest.mark.parametrize("content", ["", "{}", '[{"name": 1}]', "[1]"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "results.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=r"expected a results\.json of a sweep"):
        read_entries(file)


def test_missing_needs_a_file(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("sweep", str(grid), "--missing") == 2
    assert "--missing: expected with --fill" in capsys.readouterr().err

"""The values that tuning tries are shown, and a best value at their edge names the grid beyond it."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from fedceo.cli.app import main
from fedceo.experiment.file import load_experiment, parse_experiment
from fedceo.studies.space import beyond_edges, searched
from tests.support.experiment_text import FILE
from tests.support.small_runs import changed

RATES = [0.01, 0.03, 0.1]


@pytest.mark.parametrize(
    "best, wider", [(0.01, [0.01**2 / 0.03, 0.01, 0.03]), (0.1, [0.03, 0.1, 0.1**2 / 0.03]), (0.03, None)]
)
def test_an_edge_is_gone_beyond_by_the_step_before_it(best: float, wider: list[float] | None) -> None:
    tuned = parse_experiment(changed(train={"learning_rate": best}))
    found = beyond_edges({"train.learning_rate": RATES}, tuned)
    if wider is None:
        assert found == {}
        return
    (value,) = searched(tuned, [found["train.learning_rate"]]).values()
    assert value == pytest.approx(wider, rel=2e-3), "it is a grid that --grid takes"


def test_words_and_single_values_have_no_edge() -> None:
    tuned = parse_experiment(changed(train={"learning_rate": 0.1}))
    assert beyond_edges({"train.learning_rate": [0.1], "train.schedule": ["constant", "cosine"]}, tuned) == {}


def test_the_space_is_shown_and_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    for arguments in (["--json"], []):
        monkeypatch.setattr(sys, "argv", ["fedceo", "tune", "mine.toml", "--show-space", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
    first, *lines = capsys.readouterr().out.splitlines()
    rates = json.loads(first)["mine"]["train.learning_rate"]
    assert f"  train.learning_rate: {', '.join(map(str, rates))}" in lines and len(rates) > 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def test_a_best_value_at_the_edge_is_a_warning_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    grid = "train.learning_rate=[0.05, 0.1]"
    monkeypatch.setattr(sys, "argv", ["fedceo", "tune", "mine.toml", "--grid", grid, "--jobs", "1", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedceo: mine: the best train.learning_rate is at the edge of what was tried")
    assert "fedceo tune mine.toml --grid 'train.learning_rate=[" in line, "one of two values is always at an edge"


def test_the_command_that_goes_beyond_is_the_same_study_or_starts_from_its_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    given = ["tune", "mine.toml", "--set", "train.rounds=2", "--cell", "mine"]
    for more in (["--grid", "train.learning_rate=[0.05, 0.1]", "--jobs", "1"], ["--trials", "1"]):
        monkeypatch.setattr(sys, "argv", ["fedceo", *given, *more, "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
    first, *others = [line.partition("with: ")[2] for line in capsys.readouterr().err.splitlines()]
    assert first.startswith("fedceo tune mine.toml --set train.rounds=2 --cell mine --grid 'train.learning_rate=[")
    assert "0.05, 0.1" in first, "values that were tried are found again"
    folder = Path(*Path(shlex.split(others[0])[2]).parts[:2])
    assert folder == Path("runs/tune") and load_experiment(shlex.split(others[0])[2]).train.rounds == 2


def test_a_space_has_the_experiments_own_values_and_no_field_without_any() -> None:
    table = changed(train={"rounds": 4}, privacy={"mechanism": "distributed"}) | {"method": {"name": "fedceo"}}
    table["method"] |= {"strength": 0.7, "restart": "mean"}
    space = searched(parse_experiment(table), [])
    assert 0.7 in space["method.strength"] and space["method.strength"] == sorted(space["method.strength"])
    assert all(space.values()) and "method.interval" not in space

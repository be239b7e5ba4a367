"""Wrong inputs around tables, figures, studies and losses of one's own: one line, exit code 2, nothing written."""

import sys
from pathlib import Path

import pytest

import fedceo
from fedceo.cli.app import main
from tests.support.experiment_text import FILE
from tests.support.user_modules import module_here

OWN = """
def mixes(outputs, targets):
    return ((outputs - targets) ** 2).mean()

def fails(outputs, targets):
    raise ValueError("no")

def words(outputs, targets):
    return "high"
"""
FIGURE = ("figure", "accuracy", "run", "-o", "a.png")
REGRESSION = (
    "run", "table.toml", "--set", "task.name=regression", "--set", 'data.target_columns=["score"]',
    "--set", 'data.feature_columns=["age"]',
)  # fmt: skip
TUNE = ("tune", "mine.toml", "--show-space", "--grid")
WRONG = [
    ((*FIGURE, "--size", "0x2"), "--size: 0x2, expected two numbers of inches from 1 to 60"),
    ((*FIGURE, "--size", "nanx2"), "--size: nanx2, expected"),
    ((*FIGURE, "--size", "1e9x2"), "--size: 1e+09x2, expected"),
    ((*FIGURE, "--size", "0.1x0.1"), "--size: 0.1x0.1, expected"),
    ((*FIGURE, "--ylim", "5,5"), "--ylim: 5,5, expected two numbers, the smaller one first"),
    ((*FIGURE, "--ylim", "nan,5"), "--ylim: nan,5, expected two numbers"),
    ((*FIGURE, "--xlim", "1,inf"), "--xlim: 1,inf, expected two numbers"),
    ((*FIGURE, "--style", "mine.toml"), "--style: 'mine.toml' is no style sheet of matplotlib: Missing colon"),
    ((*FIGURE, "--style", "bytes.style"), "--style: 'bytes.style'"),
    ((*FIGURE, "--round", "3"), "--round: is for smoothness, class-bars, singular-values, and the figure is accuracy"),
    ((*FIGURE, "--layer", "x"), "--layer: is for smoothness, singular-values, survivors"),
    ((*FIGURE, "--observer", "server"), "--observer: is for trade-off"),
    (("figure", "forest", "run", "-o", "a.png", "--measure", "P-loc"), "--measure: is for accuracy"),
    (("figure", "trade-off", "run", "-o", "a.png", "--xlim=-5,3"), "expected numbers above 0: this axis is log"),
    (("table", "run", "--columns", "last,last"), "--columns: 'last' is there twice"),
    (("table", "run", "--name", "FedAvg="), "--name FedAvg=: expected NAME=other name"),
    (("trade-off", "mine.toml", "--epsilons", "1", "--set", "privacy.target_epsilon=3"), "--epsilons says which"),
    (("trade-off", "mine.toml", "--epsilons", "1", "--out", "mine.toml"), "--out: mine.toml is no folder"),
    (("sweep", "mine.toml", "--out", "mine.toml/x"), "--out: mine.toml is no folder"),
    (("tune", "mine.toml", "--out", "mine.toml"), "--out: mine.toml is no folder"),
    ((*TUNE, "nosuch.field=[1]"), "nosuch.field: expected section.field of an experiment"),
    ((*TUNE, 'train.learning_rate=["a"]'), "train.learning_rate: Input should be a valid number"),
    ((*REGRESSION, "--set", 'task.metrics=["rmse", "rmse"]'), "metrics: 'rmse' is there twice"),
    ((*REGRESSION, "--set", 'task.metrics=["own:fails"]'), "failed with ValueError: no"),
    ((*REGRESSION, "--set", 'task.metrics=["own:words"]'), "could not convert string to float: 'high'"),
    ((*REGRESSION, "--set", "task.loss=own:fails"), "failed with ValueError: no"),
    ((*REGRESSION, "--set", "task.loss=own:mixes"), "gives shape (), expected (2,), one a record"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("publishing")
    (path / "mine.toml").write_text(FILE)
    (path / "bytes.style").write_bytes(b"\xff\xfe\x00")
    few = FILE.replace("clients = 20", "clients = 2").replace("size = 5", "size = 2")
    (path / "table.toml").write_text(few.replace('name = "digits"', 'path = "people.csv"'))
    rows = [f"{age},{age / 20}" for age in range(20, 50)]
    (path / "people.csv").write_text("\n".join(["age,score", *rows]))
    fedceo.run(path / "mine.toml", out=path / "run", progress=False)
    return path


@pytest.mark.parametrize("arguments, words", WRONG, ids=lambda each: " ".join(each) if isinstance(each, tuple) else "")
def test_a_wrong_input_is_one_line_and_exit_2_and_writes_nothing(
    folder: Path,
    arguments: tuple[str, ...],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = module_here("own_of_tasks", OWN, folder, monkeypatch)
    before = sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    monkeypatch.setattr(sys, "argv", ["fedceo", *(each.replace("own:", f"{own}:") for each in arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert printed.err.startswith("fedceo: ") and printed.err.count("\n") == 1
    assert words in printed.err
    assert sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts) == before

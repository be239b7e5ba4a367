"""`fedceo trade-off`: runs at several epsilons, taken once, and their curve."""

import sys
from pathlib import Path
from typing import Any

import pytest

from fedceo.cli.app import main
from fedceo.report.curves import trade_off_points
from fedceo.report.loading import group_runs, load_runs

FILE = """
[data]
name = "digits"
clients = 40
[cohort]
size = 20
[train]
rounds = 2
local_epochs = 1
[privacy]
mechanism = "central"
noise_multiplier = 1.0
[method]
name = "fedavg"
"""


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(FILE)

    def ended(*words: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["fedceo", "trade-off", *words])
        with pytest.raises(SystemExit) as code:
            main()
        return code.value.code or 0

    return ended


def test_every_epsilon_is_run_once_and_drawn(ended: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("mine.toml", "--epsilons", "8,4,8", "--seeds", "2", "--jobs", "1") == 0
    out = Path("runs/trade-off/mine")
    assert (out / "trade-off.pdf").read_bytes().startswith(b"%PDF")
    x, mean, sd = trade_off_points(group_runs(load_runs([out])), "epsilon", "outsider")["FedAvg"]
    assert len(x) == 2 and len(mean) == len(sd) == 2
    assert 0 <= 4 - x[0] < 0.1 and 0 <= 8 - x[1] < 0.1, "noise is solved for the epsilons, and never above them"
    times = {file: file.stat().st_mtime_ns for file in out.rglob("model.safetensors")}
    assert len(times) == 4
    assert ended("mine.toml", "--epsilons", "4,8,16", "--seeds", "2", "--jobs", "1") == 0
    assert len(list(out.rglob("model.safetensors"))) == 6
    assert all(file.stat().st_mtime_ns == time for file, time in times.items()), "what is done is left alone"
    assert "fedceo figure trade-off runs/trade-off/mine -o FILE" in capsys.readouterr().out
    assert ended("mine.toml", "--epsilons", "4", "--rounds", "1", "--jobs", "1") == 0
    assert len(list(out.rglob("model.safetensors"))) == 6, "another experiment is drawn by itself, in another folder"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine.toml", "--epsilons", "1,two"], "--epsilons: '1,two', expected numbers such as 1,2,4,8"),
        (["mine.toml", "--epsilons", "-1"], "privacy.target_epsilon: Input should be greater than 0, got -1.0"),
        (["nowhere.toml", "--epsilons", "1"], "nowhere.toml: no such experiment file"),
        (["mine.toml", "--epsilons", "1", "--set", "privacy.mechanism=none"], "privacy"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_one_line(
    ended: Any, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert ended(*words) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert message in said[-1] and not Path("runs").exists()

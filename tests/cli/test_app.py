"""The commands as a user types them: what they print, what they write, how they refuse."""

import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fedceo import run as run_experiment
from fedceo.cli.app import main
from fedceo.errors import UsageError
from tests.support.experiment_text import FILE


def fedceo(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedceo", *arguments], cwd=cwd, capture_output=True, text=True, timeout=300
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(FILE)
    return tmp_path


def test_the_version(folder: Path) -> None:
    from fedceo import __version__

    done = fedceo("--version", cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"fedceo {__version__}\n", "")


def test_run_show_and_json(folder: Path) -> None:
    done = fedceo("run", "mine.toml", "--set", "train.rounds=2", "--out", "one", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "user-level, central noise" in done.stdout and "outsider" in done.stdout and "results: one" in done.stdout
    shown = fedceo("show", "one", "--json", cwd=folder)
    result = json.loads(shown.stdout)
    assert result["rounds"] == 2
    assert {"last", "best", "at_best_validation"} <= set(result["accuracy"])
    assert result["seconds"] > 0 and result["privacy"][0]["observer"]
    again = fedceo("run", "mine.toml", "--json", cwd=folder)
    assert json.loads(again.stdout)["folder"] == "runs/mine"
    assert json.loads(fedceo("run", "mine.toml", "--json", cwd=folder).stdout)["folder"] == "runs/mine-2"


def test_list(folder: Path) -> None:
    (folder / "experiments").mkdir()
    (folder / "experiments" / "a.toml").write_text("# A first experiment.\n" + FILE)
    listed = json.loads(fedceo("list", "--json", cwd=folder).stdout)
    assert {"fedavg", "fedceo"} <= set(listed["methods"])
    assert {"mlp", "lenet5"} <= set(listed["models"])
    assert {"digits", "mnist", "cifar10"} <= set(listed["data sets"])
    (folder / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    assert listed["experiment files"] == {"mine.toml": "", "experiments/a.toml": "A first experiment."}
    assert "pyproject.toml" not in fedceo("list", cwd=folder).stdout
    without = fedceo("run", cwd=folder)
    assert without.returncode == 2 and "experiments/a.toml" in without.stderr


def test_partition_picture(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    for arguments in (["--out", "who.png"], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["fedceo", "partition", "mine.toml", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
    assert (folder / "who.png").read_bytes().startswith(b"\x89PNG")
    counts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(counts) == 20 and len(counts[0]) == 10


@pytest.mark.slow
def test_interrupt_ends_the_round_saves_and_says_how_to_resume(folder: Path) -> None:
    command = [sys.executable, "-m", "fedceo", "run", "mine.toml", "--set", "train.rounds=100000", "--out", "one"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (folder / "one" / "metrics.jsonl").exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "go on with: fedceo run --resume one" in out
    assert (folder / "one" / "checkpoint.safetensors").exists()
    shown = fedceo("show", "one", cwd=folder)
    assert shown.returncode == 2 and "unfinished" in shown.stderr and "--resume one" in shown.stderr
    (folder / "one" / "nodes.json").write_text("{}")
    assert "flwr run with the same out" in fedceo("show", "one", cwd=folder).stderr, "no simulation, but a server's"


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("run", "nowhere.toml"), "nowhere.toml: no such experiment file"),
        (("run", "mine.toml", "--set", "method.strenght=3"), "method.strenght: unknown field"),
        (("run", "mine.toml", "--set", "train.roundz=3"), "train.roundz: unknown field, did you mean rounds?"),
        (("run", "mine.toml", "--set", "cohort.size=21"), "cohort.size is 21, more than data.clients, 20"),
        (("run", "mine.toml", "--set", "privacy.noise_multiplier=-1"), "privacy.noise_multiplier"),
        (("run", "mine.toml", "--set", "data.name=cifar"), "did you mean"),
        (("run", "mine.toml", "--set", "data.name=mnist"), "FEDCEO_DATA"),
        (("run", "mine.toml", "--set", "rounds"), "expected section.field=value"),
        (
            ("run", "mine.toml", "--set", "privacy.mechanism=none", "--set", "privacy.noise_multiplier=3"),
            "takes neither",
        ),
        (("run", "--resume", "nowhere"), "not a run folder"),
        (("show", "nowhere"), "not a run folder"),
        (("run", "mine.toml", "--set", "train.rounds=true"), "train.rounds: Input should be a valid integer"),
        (("run", "mine.toml", "--set", 'train.learning_rate="0.1"'), "train.learning_rate: Input should be a valid"),
        (("run", "."), ".: a folder, expected an experiment file"),
        (("run", "mine.toml", "--out", "/proc/none"), "/proc/none: cannot be written to"),
        (("run", "--foo"), "No such option: --foo"),
        (("show",), "Missing argument 'FOLDER'"),
        (("sweep", "mine.toml", "--seeds", "0"), "--seeds"),
        (("sweep", "mine.toml", "--stack", "0"), "--stack"),
        (("sweep", "mine.toml", "--stack", "2", "--jobs", "2"), "--stack: trains its runs in one process"),
        (("sweep", "mine.toml", "--grid", "train.rounds=[1]", "--grid", "train.rounds=[2]"), "is given twice"),
        (("sweep", "mine.toml", "--set", "train.roundz=1"), "mine.toml: train.roundz: unknown field"),
        (("tune", "mine.toml", "--grid", "train.rounds=[1]", "--rounds", "2"), "--grid has train.rounds too"),
        (("report", "mine.toml", "-o", "/proc/none/x.html"), "no such folder to save a report in"),
        (("privacy", "audit", "mine.toml", "--seed", "-1"), "--seed"),
    ],
)
def test_refusals_are_one_line_and_exit_2(
    folder: Path,
    arguments: tuple[str, ...],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = sorted(folder.iterdir())
    monkeypatch.chdir(folder)
    monkeypatch.delenv("FEDCEO_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", ["fedceo", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert printed.err.startswith("fedceo: ") and len(printed.err.splitlines()) == 1
    assert words in printed.err
    assert printed.out == "" and sorted(folder.iterdir()) == before


def test_a_refusal_in_a_process_of_its_own(folder: Path) -> None:
    refused = fedceo("run", "mine.toml", "--set", "data.name=cifar", cwd=folder)
    assert refused.returncode == 2
    assert refused.stderr.startswith("fedceo: ") and len(refused.stderr.splitlines()) == 1


@pytest.mark.slow
def test_demo(folder: Path) -> None:
    done = fedceo("demo", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results["FedAvg"]["accuracy"]["last"] >= 0.85
    for name in ("UDP-FedAvg", "FedCEO"):
        assert results[name]["accuracy"]["last"] >= 0.60
        outsider = next(row for row in results[name]["privacy"] if row["observer"] == "outsider")
        assert outsider["epsilon"] <= 4.0


def test_a_sweep_of_which_nothing_works_says_why(folder: Path) -> None:
    done = fedceo("sweep", "mine.toml", "--set", "train.device=nowhere", "--out", "new/out", "--jobs", "1", cwd=folder)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "nowhere" in done.stderr and (folder / "new" / "out" / "results.json").exists()


def test_runs_with_a_model_of_your_own_are_neither_audited_nor_attacked_as_another(folder: Path) -> None:
    table = tomllib.loads(FILE) | {"train": {"rounds": 1}}
    run_experiment(table, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), out=folder / "own")
    for command in (("privacy", "audit", "own", "--rounds", "2"), ("attack", "own")):
        done = fedceo(*command, cwd=folder)
        assert done.returncode == 2 and "model of your own" in done.stderr and done.stderr.count("\n") == 1
    assert not (folder / "own" / "audit.json").exists()


@pytest.mark.parametrize(
    "given, words",
    [
        ({"data": ([1], [2])}, "data: tuple, expected a Federation or a Source"),
        ({"model": "mlp"}, "model: str, expected a torch module with parameters"),
        ({"model": nn.Flatten()}, "model: Flatten, expected a torch module with parameters"),
    ],
)
def test_what_python_may_give(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        run_experiment(tomllib.loads(FILE), **given)
    with pytest.raises(UsageError, match="experiment: NoneType, expected"):
        run_experiment(None)  # type: ignore[arg-type]

"""Runs that were stopped or killed go on as if nothing had happened, from folders that can be trusted."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedceo
from fedceo.errors import UsageError
from fedceo.simulation.durable import claimed_folder
from fedceo.simulation.folder import RunFolder
from tests.support.small_federation import SmallConv, federation
from tests.support.small_runs import TABLE, KilledError, changed, kill, same_weights


def test_folder_and_load(tmp_path: Path) -> None:
    run = fedceo.run(TABLE, out=tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "experiment.toml",
        "metrics.jsonl",
        "ledger.jsonl",
        "checkpoint.safetensors",
        "model.safetensors",
        "result.json",
    }
    back = fedceo.load(tmp_path / "run")
    assert same_weights(run, back) and back.history == run.history
    x = torch.rand(5, 1, 8, 8)
    assert torch.equal(back.model(x), run.model(x))
    assert set(back.model.state_dict()) == {"input.weight", "hidden.weight"}
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    assert all(len(line.pop("sha256")) == 16 for line in told) and told == run.history


@pytest.mark.parametrize("stop_after", [1, 4, 5, 11])
def test_stopped_and_resumed_is_the_same_as_never_stopped(tmp_path: Path, stop_after: int) -> None:
    whole = fedceo.run(TABLE, out=tmp_path / "whole")
    seen: list[int] = []
    part = fedceo.run(
        TABLE,
        out=tmp_path / "part",
        on_round=lambda record: seen.append(record["round"]),
        should_stop=lambda: len(seen) + 1 >= stop_after,
    )
    assert not part.finished and len(part.history) == stop_after
    with pytest.raises(UsageError, match=r"unfinished; go on with: fedceo run --resume"):
        fedceo.load(tmp_path / "part")
    ended = fedceo.resume(tmp_path / "part")
    assert ended.finished and same_weights(whole, ended) and ended.history == whole.history
    assert (tmp_path / "part" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert fedceo.resume(tmp_path / "part").finished, "resuming a finished run gives it back"


def kill_and_resume(tmp_path: Path, kills: int) -> None:
    """Kill the program at random moments until it ends; compare with a run that was left alone."""
    table = changed(train={"rounds": 30 * kills}, checkpoint={"every": 2})  # long enough to outlive every kill
    whole = fedceo.run(table, out=tmp_path / "whole")
    start = "import json, sys, fedceo; fedceo.run(json.loads(sys.argv[1]), out=sys.argv[2])"
    go_on = "import sys, fedceo; fedceo.resume(sys.argv[2])"
    rng = np.random.default_rng(0)
    out = tmp_path / "killed"
    killed = 0
    for attempt in range(3 * kills):
        code = go_on if (out / "experiment.toml").exists() else start
        process = subprocess.Popen([sys.executable, "-c", code, json.dumps(table), str(out)], stderr=subprocess.PIPE)
        if killed < kills:
            # Wait until it is at work, then a random while: most moments of a round are hit sooner or later.
            before = len((out / "metrics.jsonl").read_text().splitlines()) if (out / "metrics.jsonl").exists() else 0
            while process.poll() is None:
                lines = (out / "metrics.jsonl").read_text().splitlines() if (out / "metrics.jsonl").exists() else []
                if len(lines) != before or attempt == 0:
                    break
                time.sleep(0.005)
            time.sleep(float(rng.uniform(0, 0.1)))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                killed += 1
        _, error = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), error.decode()
        if (out / "result.json").exists():
            break
    ended = fedceo.resume(out)
    assert killed == kills and ended.finished
    assert same_weights(whole, ended) and ended.history == whole.history


@pytest.mark.slow
def test_killed_three_times(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, 3)


@pytest.mark.slow
def test_killed_twenty_times(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, 20)


def test_rounds_lost_to_kills_silence_nobody_where_there_is_no_cap(tmp_path: Path) -> None:
    """System randomness keeps what lost rounds spent, so that a client may have taken part more often than t."""
    table = changed(privacy={"randomness": "system"}, cohort={"size": 30}, checkpoint={"every": 100})
    with pytest.raises(KilledError):
        fedceo.run(table, out=tmp_path / "run", on_round=kill)
    for _ in range(2):
        with pytest.raises(KilledError):
            fedceo.resume(tmp_path / "run", on_round=kill)
    ended = fedceo.resume(tmp_path / "run")
    assert len(ended.ledger.entries) == 3 + 12 and max(ended.ledger.participations.values()) == 3 + 12
    assert all(entry.capped == () for entry in ended.ledger.entries)


def test_a_run_killed_before_its_first_round_knows_what_it_was(tmp_path: Path) -> None:
    table = changed(data={"name": "digits", "clients": 4}, cohort={"size": 2})
    with pytest.raises(KilledError):
        fedceo.run(table, out=tmp_path / "run", data=federation(), model=SmallConv(), on_round=kill)
    with pytest.raises(UsageError, match="was made with other data or a model of your own"):
        fedceo.resume(tmp_path / "run")
    other = federation()
    other.x[0] += 1
    with pytest.raises(UsageError, match="belongs to another experiment, data or model"):
        fedceo.resume(tmp_path / "run", data=other, model=SmallConv())
    assert fedceo.resume(tmp_path / "run", data=federation(), model=SmallConv()).finished


def test_a_folder_whose_run_was_killed_while_it_began_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.toml.part").write_text("half")
    assert fedceo.run(changed(train={"rounds": 1}), out=tmp_path / "run").finished
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written to"):
        fedceo.run(changed(train={"rounds": 1}), out=tmp_path / "file" / "below")


def test_a_file_of_your_own_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "my.npz", x=rng.normal(size=(200, 6)).astype(np.float32), y=rng.integers(3, size=200))
    monkeypatch.chdir(tmp_path)
    table = TABLE | {"data": {"path": "my.npz", "clients": 10}}
    rounds = iter(range(100))
    fedceo.run(table, out="run", should_stop=lambda: next(rounds) == 2)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert fedceo.resume(tmp_path / "run").finished


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    short = changed(train={"rounds": 2})
    fedceo.run(short, out=tmp_path / "run")
    before = (tmp_path / "run" / "result.json").read_bytes()
    with pytest.raises(UsageError, match="holds a run already"):
        fedceo.run(short, out=tmp_path / "run")
    assert (tmp_path / "run" / "result.json").read_bytes() == before
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not an empty folder"):
        fedceo.run(short, out=tmp_path)
    with pytest.raises(UsageError, match="not a run folder"):
        fedceo.resume(tmp_path / "nowhere")


def unfinished(path: Path, **sections: dict[str, Any]) -> None:
    rounds = iter(range(100))
    fedceo.run(changed(**sections), out=path, should_stop=lambda: next(rounds) == 5)


def test_one_process_a_folder(tmp_path: Path) -> None:
    unfinished(tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    with folder.held(), pytest.raises(UsageError, match="another process is at work there"):
        fedceo.resume(folder.path)
    assert fedceo.resume(folder.path).finished

    def meanwhile(record: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match="another process is at work there"):
            fedceo.run(TABLE, out=tmp_path / "new")

    fedceo.run(TABLE, out=tmp_path / "new", on_round=meanwhile)


def test_two_processes_are_never_given_one_new_folder(tmp_path: Path) -> None:
    base = tmp_path / "runs" / "mine"
    with claimed_folder(base) as first, claimed_folder(base) as second:
        assert (first, second) == (base, base.with_name("mine-2"))
        (second / "kept").touch()
    assert [path.name for path in base.parent.iterdir()] == ["mine-2"], "one that nothing was written into goes again"
    with pytest.raises(UsageError, match="refused"), claimed_folder(tmp_path / "a" / "b" / "c"):
        raise UsageError("refused")
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written to"), claimed_folder(tmp_path / "file" / "run"):
        pass


def test_an_unfinished_run_on_data_of_your_own_is_accounted_for_with_its_own_clients(tmp_path: Path) -> None:
    rounds = iter(range(100))
    mine = federation(sizes=(10,) * 12, shape=(1, 8, 8), classes=10)
    table = changed(data={"clients": 100}, method={"restart": "mean"})
    run = fedceo.run(table, data=mine, out=tmp_path / "run", should_stop=lambda: next(rounds) == 5)
    command = [sys.executable, "-m", "fedceo", "privacy", "account", str(tmp_path / "run"), "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    said = {row["observer"]: row["epsilon"] for row in (told["rows"] if isinstance(told, dict) else told)}
    assert said == {row["observer"]: row["epsilon"] for row in run.result["privacy"]}


def test_a_run_that_its_budget_ended_is_measured_though_it_was_killed_then(tmp_path: Path) -> None:
    table = changed(
        privacy={"max_epsilon": 24.0, "randomness": "system"}, method={"restart": "mean"},
        evaluation={"every": 50}, checkpoint={"every": 2},
    )  # fmt: skip
    whole = fedceo.run(table, out=tmp_path / "run")
    assert whole.result["ended_early"] and whole.result["rounds"] == 7
    (tmp_path / "run" / "result.json").unlink()
    again = fedceo.resume(tmp_path / "run")
    assert again.result["ended_early"] and again.result["accuracy"]["last"] is not None
    assert fedceo.load(tmp_path / "run").history == again.history


def test_checkpoints_that_cannot_be_used(tmp_path: Path) -> None:
    unfinished(tmp_path / "one")
    unfinished(tmp_path / "two", method={"strength": 6.0})
    checkpoint = tmp_path / "one" / "checkpoint.safetensors"
    good = checkpoint.read_bytes()
    checkpoint.write_bytes((tmp_path / "two" / "checkpoint.safetensors").read_bytes())
    with pytest.raises(UsageError, match="the checkpoint belongs to another experiment"):
        fedceo.resume(tmp_path / "one")
    for cut in (0, 5, 100, len(good) - 3):
        checkpoint.write_bytes(good[:cut])
        with pytest.raises(UsageError, match=r"cut short or not a safetensors file|does not match its checksum"):
            fedceo.resume(tmp_path / "one")
    checkpoint.write_bytes(good)
    assert fedceo.resume(tmp_path / "one").finished

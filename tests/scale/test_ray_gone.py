"""Ray's own processes killed in mid-run, as where memory runs out: one line, and the run goes on later."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from threading import Thread

import pytest

from fedceo.errors import UsageError
from fedceo.scale.cluster import REPORTER, Workers, check_alive

EXPERIMENT = """
[data]
name = "digits"
clients = 20
[cohort]
size = 4
[train]
rounds = 80
local_epochs = 30
batch_size = 16
device = "cpu"
engine = "loop"
[privacy]
mechanism = "distributed"
noise_multiplier = 0.5
[method]
name = "fedceo"
[evaluation]
every = 40
[checkpoint]
every = 3
"""
QUIET = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
PARTS = {"gcs_server": "GCS", "raylet": "raylet"}


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "fedceo", "run", *options, "--json"]


def finished(folder: Path, *options: str) -> Path:
    done = subprocess.run(command(*options), cwd=folder, capture_output=True, text=True, env=QUIET)
    assert done.returncode == 0, done.stderr
    return folder / str(json.loads(done.stdout)["folder"])


def children(of: int) -> dict[str, int]:
    listed = subprocess.run(["ps", "--ppid", str(of), "-o", "pid=,comm="], capture_output=True, text=True).stdout
    return {name: int(pid) for pid, name in (line.split(maxsplit=1) for line in listed.splitlines())}


def states(session: int) -> list[str]:
    """The states of all processes of a session, Ray's among them."""
    return subprocess.run(["ps", "-s", str(session), "-o", "stat="], capture_output=True, text=True).stdout.split()


def in_mid_run(running: "subprocess.Popen[str]", metrics: Path) -> None:
    while not (metrics.exists() and metrics.read_text().count("\n") >= 5):
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without Ray and without an interruption."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "mine.toml").write_text(EXPERIMENT)
    return finished(folder, "mine.toml", "--out", "whole")


def test_what_does_not_answer_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as gone:
        parts = {"GCS": f"127.0.0.1:{there.getsockname()[1]}", "raylet": f"127.0.0.1:{gone.getsockname()[1]}"}
        check_alive(parts)
        gone.close()
        with pytest.raises(UsageError, match=f"^Ray is gone: its raylet at {parts['raylet']} has ended$"):
            check_alive(parts)


def test_only_reports_of_ray_are_left_out_of_what_is_printed() -> None:
    stream = io.StringIO()
    with redirect_stdout(Workers().aside(stream)):
        for name in (REPORTER, "another"):
            thread = Thread(target=print, args=(f"by {name}",), name=name)
            thread.start()
            thread.join()
        print("by this one")
    assert stream.getvalue() == "by another\nby this one\n"


@pytest.mark.slow  # Ray takes seconds to start, and each worker takes seconds to import torch
@pytest.mark.parametrize("part", PARTS)
def test_a_run_whose_ray_is_killed_goes_on_to_the_same_bits(tmp_path: Path, part: str, whole: Path) -> None:
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    ray = ("--engine", "ray", "--workers", "2")
    running = subprocess.Popen(
        command("mine.toml", "--out", "run[ray]", *ray), cwd=tmp_path, env=QUIET, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    in_mid_run(running, tmp_path / "run[ray]" / "metrics.jsonl")
    os.kill(children(running.pid)[part], signal.SIGKILL)
    out, err = running.communicate(timeout=300)
    assert (running.returncode, out) in [(2, ""), (1, "")], err
    named = rf"Ray is gone: its {PARTS[part]} at \S+ has ended"
    quit_by_ray = "ended from outside, by Ray or the system"  # where it is the first to notice
    why = named if running.returncode == 2 else quit_by_ray
    assert re.fullmatch(rf"fedceo: {why}; go on with: fedceo run --resume run\[ray\]\n", err), err
    for _ in range(600):
        if all(state.startswith("Z") for state in states(running.pid)):  # ended, if not yet buried
            break
        time.sleep(0.5)
    else:
        pytest.fail("processes of Ray are left behind")
    assert not list((tmp_path / "run[ray]").glob("*.part")), "nothing half-written"
    resumed = finished(tmp_path, "--resume", "run[ray]")
    for name in ("model.safetensors", "ledger.jsonl"):
        assert (resumed / name).read_bytes() == (whole / name).read_bytes()

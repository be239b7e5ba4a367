"""`fedceo run --engine ray`: what is refused in one line, and a cluster that runs already."""

import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from threading import Thread

import pytest

import fedceo
from fedceo.cli.app import main
from fedceo.errors import UsageError
from fedceo.scale.cluster import Workers

EXPERIMENT = """
[data]
name = "digits"
clients = 20
[cohort]
size = 4
[train]
rounds = 2
local_epochs = 1
batch_size = 16
device = "cpu"
[privacy]
mechanism = "distributed"
noise_multiplier = 0.5
[method]
name = "fedceo"
"""

QUIET = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(EXPERIMENT)
    return path


def command(file: Path, out: str, options: Sequence[str], before: str = "") -> list[str]:
    code = f"{before}\nfrom fedceo.cli.app import main\nmain()"
    return [sys.executable, "-c", code, "run", str(file), "--out", str(file.parent / out), *options]


def run(file: Path, *options: str, out: str = "run", before: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(file, out, options, before), capture_output=True, text=True, env=QUIET)


@pytest.mark.parametrize(
    "options, line",
    [
        ("--engine spark", "--engine: 'spark', expected \"here\" or \"ray\""),
        ("--workers 2", "--workers: is for --engine ray"),
        ("--engine ray --workers 0", "--workers: 0, expected at least 1"),
        ("--engine ray --gpus-per-worker 2", "--gpus-per-worker: 2, expected 0 to 1, since a worker trains on one GPU"),
        ("--engine ray --gpus-per-worker 1", "--gpus-per-worker: 1, but train.device means cpu on this machine"),
        ("--engine ray --ray-address ray://x:1", "--ray-address: 'ray://x:1', expected HOST:PORT of a cluster's head, "
         "or auto"),
        ("--engine ray --ray-address 127.0.0.1:1", "--ray-address: no cluster answers at 127.0.0.1:1; start one with: "
         "ray start --head"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_nothing_is_written(
    file: Path, options: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fedceo", *command(file, "run", options.split())[3:]])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr() == ("", f"fedceo: {line}\n")
    assert not (file.parent / "run").exists()


def test_an_address_where_something_else_answers(file: Path) -> None:
    """Ray itself would try for minutes."""
    with socketserver.TCPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        Thread(target=server.handle_request, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        with pytest.raises(UsageError, match=f"^--ray-address: no cluster answers at {address}; start one with: "):
            fedceo.run(file, workers=Workers(address=address))


def test_without_ray_the_extra_is_named(file: Path) -> None:
    done = run(file, "--engine", "ray", before="import sys; sys.modules['ray'] = None")
    assert (done.returncode, done.stderr) == (2, "fedceo: --engine ray: needs the extra fedceo[ray]\n")


@pytest.fixture
def address() -> Iterator[str]:
    """A cluster of two cores that others own: started in the foreground, so that it ends with its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}", "--num-cpus=2",
        "--node-ip-address=127.0.0.1", "--include-dashboard=false", "--object-store-memory=100000000",
    ]  # fmt: skip
    cluster = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=QUIET)
    assert cluster.stdout is not None
    assert any("--block" in line for line in cluster.stdout), "printed once the cluster runs"
    yield f"127.0.0.1:{port}"
    cluster.terminate()
    cluster.communicate()


@pytest.mark.slow
def test_a_run_on_a_cluster_that_runs_already(file: Path, address: str) -> None:
    """Twice, since it must still be there afterwards; only the result goes to standard output."""
    here = run(file, "--json", out="here")
    there = [run(file, "--engine", "ray", "--ray-address", address, "--json", out=f"{turn}") for turn in range(2)]
    for done in there:
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert (result["workers"]["count"], result["workers"]["machines"]) == (2, 1)
        assert result["accuracy"] == json.loads(here.stdout)["accuracy"]
    many = run(file, "--engine", "ray", "--ray-address", address, "--workers", "3", out="many")
    assert (many.returncode, many.stderr) == (2, "fedceo: --workers: 3, but Ray has room for 2 with 1 CPU each\n")


@pytest.mark.slow
def test_ctrl_c_on_a_ray_of_our_own_ends_the_round_and_leaves_no_process(file: Path) -> None:
    """The terminal sends the signal to the whole group, so Ray's processes get it too."""
    options = ["--engine", "ray", "--workers", "2", "--set", "train.rounds=100000"]
    running = subprocess.Popen(command(file, "run", options), env=QUIET, start_new_session=True)
    metrics = file.parent / "run" / "metrics.jsonl"
    while running.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") >= 2):
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGINT)
    assert running.wait() == 130
    assert (file.parent / "run" / "checkpoint.safetensors").exists()
    session = subprocess.run(["ps", "-s", str(running.pid), "-o", "stat="], capture_output=True, text=True).stdout
    assert all(state.startswith("Z") for state in session.split()), "ended, if not yet buried"

"""A real federation on this machine: a SuperLink and three SuperNodes, TLS, registered keys, processes that die."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")

from safetensors.torch import load_file

import fedceo
from fedceo.deploy.new import write_app
from fedceo.experiment.file import Experiment
from fedceo.simulation.folder import RunFolder
from tests.support.flower_grid import as_seeded, experiment, simulated_schedule
from tests.support.superlink import Link, node_key, superlink

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc"),
]

SEEDED_CLIENT = """
import time

from fedceo.deploy.flower import PrivacyMod, client_app
from fedceo.training.schedule import Schedule

from .data import experiment, own

def slowly(client):
    time.sleep(PAUSE)
    return own(client)

app = client_app(experiment, slowly, PrivacyMod(experiment, noise=Schedule(experiment.seed, noise_key="NOISE_KEY")))
"""


def app_of(folder: Path, given: Experiment, pause: float = 0.0) -> Path:
    """The app that `fedceo flower new` writes, with a noise source that a simulation has too.

    pause: seconds before a node trains, for tests that must find it at work.
    """
    write_app(folder, given)
    code = SEEDED_CLIENT.replace("NOISE_KEY", simulated_schedule(given).noise_key).replace("PAUSE", str(pause))
    (folder / "federation" / "client_app.py").write_text(code)
    return folder


def small(**privacy: Any) -> Experiment:
    return experiment(
        data={"clients": 3}, cohort={"size": 3}, privacy=privacy, evaluation={"every": 4}, train={"local_epochs": 2}
    )


def distance_from_simulation(given: Experiment, out: Path) -> float:
    expected = fedceo.run(as_seeded(given)).weights
    found = load_file(out / "model.safetensors")
    return max(float((found[name] - w).abs().max()) for name, w in expected.items())


def start_run(link: Link, app: Path, out: Path, timeout: int, *options: str) -> None:
    link.flwr("run", str(app), "here", "--run-config", f"out={json.dumps(str(out))} timeout={timeout}", *options)


def join(link: Link, app: Path) -> list[Path]:
    keys = [node_key(link.folder, f"key-{number}") for number in range(3)]
    for number, key in enumerate(keys):
        link.register(key)
        link.node(number, key, app)
    return keys


def test_four_rounds_over_tls_end_where_the_simulation_does_and_strangers_stay_out(tmp_path: Path) -> None:
    given, out = small(), tmp_path / "run"
    app = app_of(tmp_path / "app", given)
    with superlink(tmp_path) as link:
        keys = join(link, app)
        start_run(link, app, out, 300)
        stranger = link.node(0, node_key(tmp_path, "stranger"), name="stranger")
        deceived = link.node(0, keys[0], authority="wrong", name="deceived")
        for name in (stranger, deceived):
            link.wait(partial(link.has_ended, name), f"{name} to be turned away")
            assert link.processes.pop(name).returncode != 0
        assert "the node's key is not registered" in link.log(stranger)
        assert "CERTIFICATE_VERIFY_FAILED" in link.log(deceived)
        folder = RunFolder(out)
        link.wait(lambda: folder.finished, "the run to finish", "superlink", "node-0", "node-1", "node-2")
    assert distance_from_simulation(given, out) < 1e-6
    assert [entry.reported for entry in folder.ledger(repeatable=False).entries] == [(0, 1, 2)] * 4
    assert all(record["refused"] == {} for record in folder.history())


def test_a_node_and_the_server_die_and_the_run_goes_on_with_its_ledger_right(tmp_path: Path) -> None:
    """Node 0 dies while it trains in round 2 and is started again; the server's app dies while round 3 is under way."""
    given, out = small(min_reports=2), tmp_path / "run"
    app, folder, asked = app_of(tmp_path / "app", given, pause=6), RunFolder(out), out / "asked.json"

    def has_received(log: str, t: int) -> bool:  # what a node has not yet received it is sent again after a restart
        return "Received successfully" in log.partition(f"ROUND {t}]")[2]

    def asks(t: int) -> bool:
        return asked.exists() and json.loads(asked.read_text())["entry"]["round"] == t

    with superlink(tmp_path) as link:
        keys = join(link, app)
        start_run(link, app, out, 120)
        link.wait(lambda: has_received(link.log("node-0"), 2), "round 2", "superlink", "node-0", "node-1", "node-2")
        link.kill("node-0")
        link.revive(0, keys[0], app)
        link.wait(lambda: asks(3), "round 3", "superlink", "node-0", "node-1", "node-2")
        link.kill_app()
        start_run(link, app, out, 300)
        # a node that was being sent a message of the killed run asks for it for minutes before it looks for others
        watched = ("superlink", "node-0", "node-1", "node-2")
        link.wait(lambda: folder.finished, "the run to finish", *watched, seconds=1000)
    entries = folder.ledger(repeatable=False).entries
    assert [(e.round, e.reported, e.released) for e in entries] == [
        (1, (0, 1, 2), True),
        (2, (1, 2), True),
        (3, (), False),
        (3, (0, 1, 2), True),
        (4, (0, 1, 2), True),
    ]
    assert entries[1].unused == (0,)
    assert {1, 2} <= set(entries[2].unused)  # and 0, if it was back when round 3 began
    assert [record["round"] for record in folder.history()] == [1, 2, 3, 4]
    server = next(row for row in folder.result()["privacy"] if row["observer"] == "server")
    assert "5 uploads" in server["assumption"]


def test_the_app_runs_in_flowers_simulation_as_it_is_written(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Flower simulates with Ray")
    given, out = experiment(data={"clients": 3}, train={"rounds": 2}), tmp_path / "run"
    write_app(tmp_path / "app", given)
    with superlink(tmp_path, simulation=True) as link:
        nodes = "num-supernodes=3 client-resources-num-cpus=1"
        start_run(link, tmp_path / "app", out, 300, "--federation-config", nodes)
        link.wait(lambda: RunFolder(out).finished, "the run to finish", "superlink")
    assert [record["reports"] for record in RunFolder(out).history()] == [3, 3]

"""A stranger at the documented federation: nothing is listed, nothing starts, nothing runs on any node."""

import json
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")

import httpx
from flwr.common.constant import ErrorCode
from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, run_pb2
from flwr.proto.node_pb2 import Node
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.superlink.main import create_app
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedceo.simulation.folder import RunFolder
from tests.support.documented_federation import DocumentedFederation, commands, section
from tests.support.superlink import BIN, descendants, node_key

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc"),
]

MINE = """
seed = 3
[data]
name = "digits"
[train]
rounds = 3
local_epochs = 1
[privacy]
mechanism = "distributed"
noise_multiplier = 0.5
[method]
name = "fedceo"
"""

THEIRS = {
    "pyproject.toml": """
[project]
name = "theirs"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "theirs"
[tool.flwr.app.components]
serverapp = "theirs.server:app"
clientapp = "theirs.client:app"
[tool.flwr.app.config]
""",
    "theirs/__init__.py": "",
    "theirs/server.py": """
import json
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    Path("MARKS", "server").touch()
    nodes = list(grid.get_node_ids())
    asked = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
    replies = grid.send_and_receive(asked, timeout=60)
    told = {str(r.metadata.src_node_id): r.error.code if r.has_error() else 0 for r in replies}
    Path("MARKS", "replies.part").write_text(json.dumps(told))
    Path("MARKS", "replies.part").rename(Path("MARKS", "replies.json"))
""",
    "theirs/client.py": """
import os
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

Path("MARKS", f"client-{os.getpid()}").touch()
app = ClientApp()

@app.query()
def query(message, context):
    return Message(RecordDict(), reply_to=message)
""",
}


class Stranger:
    """Whoever reaches the open port with the authority's certificate, and an app that leaves marks where it runs."""

    def __init__(self, link: DocumentedFederation, folder: Path) -> None:
        self.link, self.folder, self.marks = link, folder, folder / "marks"
        self.app, self.address = folder / "theirs", f"localhost:{link.port}"
        self.authority = link.folder / "ca.crt"
        for name, text in THEIRS.items():
            (self.app / name).parent.mkdir(parents=True, exist_ok=True)
            (self.app / name).write_text(text.replace("MARKS", str(self.marks)))
        self.marks.mkdir()
        (folder / "flwr").mkdir()
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "it"\n[superlink.it]\naddress = "{self.address}"\n'
            f"root-certificates = {json.dumps(str(self.authority))}\n"
        )
        node_key(folder, "theirs.key")

    def flwr(self, *options: str) -> int:
        """The exit code of a command that whoever starts runs would use."""
        env = self.link._env() | {"FLWR_HOME": str(self.folder / "flwr")}
        return subprocess.run([BIN / "flwr", *options], env=env, capture_output=True, check=False).returncode

    def status(self, path: str) -> int:
        """The answer to an empty request."""
        with httpx.Client(verify=ssl.create_default_context(cafile=self.authority)) as client:
            headers = {"content-type": "application/protobuf", "content-length": "0"}
            return client.post(f"https://{self.address}{path}", headers=headers).status_code

    def statuses_as_a_node(self, node_id: int, run_id: int) -> dict[str, int]:
        """The answers to every question of a node, in the name of a registered one, with a key that is not."""
        private, public = generate_key_pairs()
        node, key = Node(node_id=node_id), public_key_to_bytes(public)
        asked: dict[str, Any] = {
            "RegisterNode": fleet_pb2.RegisterNodeFleetRequest(public_key=key),
            "ActivateNode": fleet_pb2.ActivateNodeRequest(public_key=key, heartbeat_interval=30),
            "DeactivateNode": fleet_pb2.DeactivateNodeRequest(node_id=node_id),
            "UnregisterNode": fleet_pb2.UnregisterNodeFleetRequest(node_id=node_id),
            "SendNodeHeartbeat": heartbeat_pb2.SendNodeHeartbeatRequest(node=node, heartbeat_interval=30),
            "PullMessages": fleet_pb2.PullMessagesRequest(node=node),
            "PushMessages": fleet_pb2.PushMessagesRequest(node=node),
            "GetRun": run_pb2.GetRunRequest(node=node, run_id=run_id),
            "GetFab": fab_pb2.GetFabRequest(node=node, run_id=run_id),
            "PullObject": message_pb2.PullObjectRequest(node=node, run_id=run_id, object_id="0" * 64),
            "PushObject": message_pb2.PushObjectRequest(node=node, run_id=run_id, object_id="0" * 64),
            "ConfirmMessageReceived": message_pb2.ConfirmMessageReceivedRequest(node=node, run_id=run_id),
        }
        found = {}
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        signed, authority = NodeAuthHttpInterceptor(private, public), self.authority.read_bytes()
        with FleetHttpClient.from_server_address(self.address, False, authority, [version, signed]) as client:
            for question, request in asked.items():
                try:
                    getattr(client, question)(request)
                    found[question] = 200
                except httpx.HTTPStatusError as refused:
                    found[question] = refused.response.status_code
        return found


def operator_runs(link: DocumentedFederation) -> list[dict[str, Any]]:
    return list(json.loads(link.flwr("list", "ours", "--format", "json"))["runs"])


def registered_nodes(link: DocumentedFederation) -> list[dict[str, Any]]:
    return list(json.loads(link.flwr("supernode", "list", "ours", "--format", "json"))["nodes"])


def open_ports(pid: int) -> set[int]:
    """Ports on which a process, or one that it started, listens for the network."""
    sockets = set()
    for each in [pid, *descendants(pid)]:
        for handle in Path(f"/proc/{each}/fd").iterdir():
            try:
                sockets.add(str(handle.readlink()))
            except OSError:
                continue
    found = set()
    for table, loopback in (("tcp", "0100007F"), ("tcp6", "0" * 24 + "01000000")):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            address, port = local.split(":")
            if state == "0A" and f"socket:[{rest[5]}]" in sockets and address != loopback:
                found.add(int(port, 16))
    return found


def test_a_stranger_sees_starts_and_runs_nothing_and_the_operators_door_runs_no_other_app_on_nodes(
    tmp_path: Path,
) -> None:
    link, out = DocumentedFederation(tmp_path / "federation"), tmp_path / "federation" / "run-1"
    link.folder.mkdir()
    try:
        link.start()
        link.write_app(MINE)
        for number in range(3):
            link.join(number)
        link.wait(lambda: len([n for n in registered_nodes(link) if n["status"] == "online"]) == 3, "three nodes")
        (tmp_path / "stranger").mkdir()
        stranger = Stranger(link, tmp_path / "stranger")
        start, show = commands(section("5. The run"))[:2]
        link.run_in_background("operator", start, link.folder)
        link.wait(lambda: out.exists(), "the run to start", "superlink", "node-0", "node-1", "node-2")
        run = operator_runs(link)[0]

        refused = {
            option: stranger.flwr(*option.split())
            for option in (
                f"supernode register {stranger.folder}/theirs.key.pub it",
                "supernode list it",
                "list it",
                f"log {run['run-id']} it",
                f"stop {run['run-id']} it",
                f"run {stranger.app} it",
            )
        }
        assert all(refused.values()), refused
        paths = set(create_app().openapi()["paths"]) | {"/docs", "/openapi.json"}
        answers = {path: stranger.status(path) for path in paths}
        nodes_alone = {path for path in paths if path.startswith("/v1/fleet/")}
        assert len(nodes_alone) == 12 and "/v1/control/start-run" in paths and "/v1/runtime/acquire-task" in paths
        assert {path for path, status in answers.items() if status != 404} == nodes_alone
        assert all(answers[path] == 412 for path in nodes_alone), answers
        as_a_node = stranger.statuses_as_a_node(int(registered_nodes(link)[0]["node-id"]), int(run["run-id"]))
        assert len(as_a_node) == len(nodes_alone) and set(as_a_node.values()) == {412}, as_a_node
        ports = {name: open_ports(process.pid) for name, process in link.processes.items()}
        assert ports == {"superlink": {link.port}, "operator": set(), "node-0": set(), "node-1": set(), "node-2": set()}

        link.wait(lambda: RunFolder(out).finished, "the run to finish", "superlink", "node-0", "node-1", "node-2")
        assert [e.reported for e in RunFolder(out).ledger(repeatable=False).entries] == [(0, 1, 2)] * 3
        assert "fedceo" in link.shell(show, link.folder)
        assert len(operator_runs(link)) == 1 and len(registered_nodes(link)) == 3
        assert not list(stranger.marks.iterdir())

        # Whoever got hold of the operator's door runs an app on the SuperLink and on a node that takes any app.
        pinned = {node["node-id"] for node in registered_nodes(link)}
        link.join(3, careless=True)
        link.wait(lambda: len([n for n in registered_nodes(link) if n["status"] == "online"]) == 4, "the fourth node")
        link.flwr("run", str(stranger.app), "ours")
        link.wait(lambda: (stranger.marks / "replies.json").exists(), "replies", "node-0", "node-1", "node-2", "node-3")
        replies = json.loads((stranger.marks / "replies.json").read_text())
        assert {node for node, code in replies.items() if code == ErrorCode.INVALID_FAB} == pinned
        assert sorted(replies.values()) == [0] + [ErrorCode.INVALID_FAB] * 3
        assert (stranger.marks / "server").exists()
        assert len(list(stranger.marks.glob("client-*"))) == 1
    finally:
        link.stop()

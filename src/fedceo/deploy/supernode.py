"""A SuperNode that runs the app on its own disk, and never code from the network.

Flower's SuperNode runs whatever app the SuperLink sends. Here it runs none (its isolation mode `process`): messages
wait behind a secret that only this process has, and the app that the data holder gave answers those of its own runs.
"""

import io
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.app import Context, Error, Message
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp import ClientApp
from flwr.common.config import get_project_config
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.object_ref import load_app
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedceo.deploy.client import NodeError
from fedceo.errors import UsageError

LOG = logging.getLogger(__name__)
LARGEST_MANIFEST = 2**20
"""Bytes; a bundle comes from the network."""


def serve_supernode(folder: Path, superlink: str, authority: Path, key: Path, node_config: str) -> None:
    """Serve until the process is ended.

    Args:
        folder: the app that this node runs.
        superlink: the SuperLink's host:port.
        authority: the PEM file of the authority that signed the SuperLink's certificate.
        key: the private key that is registered there.
        node_config: such as "partition-id=0".
    """
    for option, file in {"root-certificates": authority, "auth-supernode-private-key": key}.items():
        if not file.is_file():
            raise UsageError(f"--{option}: {file} is not a file")
    app, secret, port = load_given_app(folder), secrets.token_bytes(32), _free_port()
    read, write = os.pipe()  # Flower takes the secret from a file, and a pipe leaves none behind
    os.write(write, secret)
    os.close(write)
    sys.argv = [
        "flower-supernode", "--superlink", superlink, "--root-certificates", str(authority),
        "--auth-supernode-private-key", str(key), "--node-config", node_config,
        "--isolation", "process", "--superexec-auth-secret-file", f"/dev/fd/{read}",
        "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    threading.Thread(target=_answer_all, args=(app, f"127.0.0.1:{port}", secret), name="app", daemon=True).start()
    flower_supernode()


@dataclass(frozen=True)
class GivenApp:
    """The app that a data holder gave its node.

    Attributes:
        files: the lines of Flower's manifest of the app, each with a path and the SHA-256 of that file. The bytes of a
            bundle would not do: they depend on the library that compressed it.
    """

    folder: Path
    app: ClientApp
    files: frozenset[str]

    def reply(self, message: Message, context: Context, bundle: bytes) -> Message:
        """The app's answer to a message of a run whose app is in the bundle: an error if that is another app."""
        bundled = bundled_files(bundle)
        if bundled != self.files:
            ours = ", ".join(sorted(line.partition(",")[0] for line in self.files - bundled))
            LOG.error("run %d is of another app than %s; not there: %s", message.metadata.run_id, self.folder, ours)
            return Message(Error(ErrorCode.INVALID_FAB, "this node was given another app"), reply_to=message)
        try:
            return self.app(message, context)
        except Exception as error:
            LOG.error("the app failed", exc_info=error)
            reason = str(error) if isinstance(error, NodeError) else "the app on this node failed; its own log says how"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def load_given_app(folder: Path) -> GivenApp:
    """The app in a folder; what it answers is as the folder is now, whatever becomes of the folder later."""
    try:
        files = bundled_files(build_fab_from_disk(folder))
        reference = get_project_config(folder)["tool"]["flwr"]["app"]["components"]["clientapp"]
    except (ValueError, OSError) as error:
        raise UsageError(f"{folder}: not an app ({' '.join(str(error).split())})") from None
    app = load_app(reference, UsageError, folder)
    if not isinstance(app, ClientApp):
        raise UsageError(f"{folder}: {reference} is not a ClientApp")
    return GivenApp(folder, app, files)


def bundled_files(bundle: bytes) -> frozenset[str]:
    """The lines of the manifest of a bundle; none if it cannot be read."""
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as files:
            manifest = files.getinfo(".info/CONTENT")
            if manifest.file_size <= LARGEST_MANIFEST:
                return frozenset(files.read(manifest).decode().splitlines())
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError):
        pass
    return frozenset()


def _answer_all(app: GivenApp, address: str, secret: bytes) -> None:
    """Answer whatever the SuperNode receives; a node that cannot must end, since its SuperNode would wait for ever."""
    try:
        signed = SuperExecAuthHttpInterceptor(
            master_secret=secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
        )
        client = _runtime(address, signed)
        while True:
            try:
                claimed = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
            except httpx.TransportError:  # the SuperNode begins or ends
                claimed = None
            if claimed is not None and claimed.token:
                _answer(app, _runtime(address, RuntimeTokenHttpInterceptor(claimed.token)))
            else:
                time.sleep(0.5)
    except Exception as error:
        LOG.error("this node ends", exc_info=error)
        os.kill(os.getpid(), signal.SIGTERM)


def _answer(app: GivenApp, client: RuntimeHttpClient) -> None:
    def beat() -> bool:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        return True

    heart = HeartbeatSender(beat)
    heart.start()
    try:
        message, context, _, bundle = pull_task_input(client)
        push_message(client, app.reply(message, context, bundle.content), context)
    finally:
        heart.stop()
    push_task_output(client, context, SubStatus.COMPLETED, "")
    client.close()


def _runtime(address: str, interceptor: ProtobufClientInterceptor) -> RuntimeHttpClient:
    version = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    return RuntimeHttpClient.from_server_address(address, True, None, [version, interceptor])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

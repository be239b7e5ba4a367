"""A SuperLink with two doors: one on the network for nodes alone, one on loopback for whoever starts runs.

Flower serves all of its interfaces on one port. Of these only the nodes' asks for a key; whoever reaches the others
registers keys, starts apps on every machine and takes the work of the server's app. Here the network's door leads to
the nodes' interface and nowhere else.
"""

import socket
import sys
import threading
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.http_logging import get_uvicorn_log_config
from flwr.supercore.logger import console_handler
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
from flwr.superlink.main import create_app
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fedceo.errors import UsageError

LOOPBACK = "127.0.0.1"
NODES = "/v1/fleet/"
"""Where Flower's interface for nodes begins, which asks for the signature of a registered key."""
LARGEST_REQUEST = 2**26
"""Bytes of one request of a node. Flower cuts arrays into objects of 5 MiB, and sends one object a request."""
NOT_REGISTERED = {"code": int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED), "detail": "the node's key is not registered"}
"""As Flower answers; at a 401 a SuperNode would end without a word."""


def serve_superlink(
    host: str, port: int, control_port: int, authority: Path, certificate: Path, key: Path, database: Path
) -> None:
    """Serve until the process is ended.

    Args:
        host, port: where nodes are served.
        control_port: on loopback, everything else: `flwr run`, and the server's app.
        authority, certificate, key: PEM files; the certificate must also be good for 127.0.0.1.
        database: the file of Flower's state.
    """
    for option, file in {"ca-certfile": authority, "certfile": certificate, "keyfile": key}.items():
        if not file.is_file():
            raise UsageError(f"--ssl-{option}: {file} is not a file")
    nodes, control = _listen("--port", host, port), _listen("--control-port", LOOPBACK, control_port)
    sys.argv = [
        "flower-superlink", "--host", LOOPBACK, "--port", str(control_port), "--database", str(database),
        "--ssl-ca-certfile", str(authority), "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key),
        "--enable-supernode-auth", "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    app = create_app(_parse_superlink_lifespan_config(), SuperLinkLifespan)
    state = app.state.linkstate_factory.state()
    log = get_uvicorn_log_config(console_handler.level)
    options: dict[str, Any] = {"ssl_certfile": certificate, "ssl_keyfile": str(key), "log_config": log, "ws": "none"}
    door = for_nodes_alone(app, lambda key: state.get_node_id_by_public_key(key) is not None)
    outside = uvicorn.Server(uvicorn.Config(door, lifespan="off", **options))
    print(f"nodes: running on {host}:{port}, for registered keys alone", flush=True)
    print(f"runs: running on {LOOPBACK}:{control_port}, for this machine alone", flush=True)
    threading.Thread(target=outside.run, args=([nodes],), name="nodes", daemon=True).start()
    uvicorn.Server(uvicorn.Config(app, **options)).run([control])


def for_nodes_alone(app: ASGIApp, is_registered: Callable[[bytes], bool]) -> ASGIApp:
    """The part of Flower's app that nodes need; everything else is not found.

    Flower reads a request before it looks who sends it. Here only requests of a bounded size that carry the signature
    of a registered key are read; Flower then checks for itself what was signed, and when.
    """

    async def door(scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        if not scope["path"].startswith(NODES):
            await Response(status_code=404)(scope, receive, send)
        elif not await run_in_threadpool(_is_signed, headers, is_registered):
            await JSONResponse(NOT_REGISTERED, 412)(scope, receive, send)
        elif "transfer-encoding" in headers or not length.isdigit():
            await Response(status_code=411)(scope, receive, send)
        elif int(length) > LARGEST_REQUEST:
            await Response(status_code=413)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return door


def _is_signed(headers: Headers, is_registered: Callable[[bytes], bool]) -> bool:
    try:
        key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        signed = headers[TIMESTAMP_HEADER].encode()
        return is_registered(key) and verify_signature(bytes_to_public_key(key), signed, signature)
    except (KeyError, ValueError):
        return False


def _listen(option: str, host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise UsageError(f"{option}: cannot listen on {host}:{port} ({error.strerror})") from None

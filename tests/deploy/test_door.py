"""The SuperLink's door for nodes: what is let through, by path and by size."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")

from starlette.types import Receive, Scope, Send

from fedceo.cli.app import app
from fedceo.deploy.superlink import LARGEST_REQUEST, for_nodes_alone
from fedceo.errors import UsageError


def status(path: str, **headers: str) -> int:
    """The status of an answer, 200 if the request reached what is behind the door."""
    told: list[dict[str, Any]] = []

    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> dict[str, Any]:
        raise AssertionError("a request is refused before it is read")

    async def send(message: Any) -> None:
        told.append(message)

    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": path, "headers": lines}
    asyncio.run(for_nodes_alone(behind)(scope, receive, send))
    return int(told[0]["status"])


@pytest.mark.parametrize("length", ["0", str(LARGEST_REQUEST)])
def test_a_nodes_question_is_let_through(length: str) -> None:
    assert status("/v1/fleet/pull-messages", content_length=length) == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/v1/runtime/responses",
        "/docs",
        "/openapi.json",
        "/",
        "//v1/fleet/get-run",
        "/V1/FLEET/get-run",
        "/v1/fleet",
    ],
)
def test_every_other_path_is_not_found(path: str) -> None:
    assert status(path, content_length="0") == 404


def test_a_request_must_say_its_length_and_be_of_bounded_size() -> None:
    path = "/v1/fleet/push-object"
    assert status(path) == 411
    assert status(path, transfer_encoding="chunked") == 411
    assert status(path, transfer_encoding="chunked", content_length="5") == 411
    assert status(path, content_length="-5") == 411
    assert status(path, content_length=str(LARGEST_REQUEST + 1)) == 413


def test_a_missing_certificate_is_named_in_one_line(tmp_path: Path) -> None:
    options = [part for name in ("ca-cert", "cert", "key") for part in (f"--ssl-{name}file", str(tmp_path / name))]
    done = CliRunner().invoke(app, ["flower", "superlink", *options, "--database", str(tmp_path / "state.db")])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == f"--ssl-ca-certfile: {tmp_path / 'ca-cert'} is not a file"

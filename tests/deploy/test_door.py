"""The SuperLink's door for nodes: what is let through, by path, signature and size."""

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from starlette.types import Receive, Scope, Send

from fedceo.cli.app import app
from fedceo.deploy.superlink import LARGEST_REQUEST, for_nodes_alone
from fedceo.errors import UsageError

PRIVATE, PUBLIC = generate_key_pairs()
KEY = public_key_to_bytes(PUBLIC)
STAMP = "2026-01-01T00:00:00+00:00"


def signature(private: ec.EllipticCurvePrivateKey = PRIVATE, key: bytes = KEY, stamp: str = STAMP) -> dict[str, str]:
    signed = sign_message(private, stamp.encode())
    return {
        "flwr-public-key": b64encode(key).decode(),
        "flwr-signature": b64encode(signed).decode(),
        "flwr-timestamp": stamp,
    }


def status(path: str, headers: dict[str, str]) -> int:
    """The status of an answer, 200 if the request reached what is behind the door."""
    told: list[dict[str, Any]] = []

    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> dict[str, Any]:
        raise AssertionError("a request is refused before it is read")

    async def send(message: Any) -> None:
        told.append(message)

    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": path, "headers": lines}

    async def knock() -> None:
        await for_nodes_alone(behind, lambda key: key == KEY)(scope, receive, send)

    asyncio.run(knock())
    return int(told[0]["status"])


@pytest.mark.parametrize("length", ["0", str(LARGEST_REQUEST)])
def test_a_nodes_question_is_let_through(length: str) -> None:
    assert status("/v1/fleet/pull-messages", signature() | {"content-length": length}) == 200


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
    assert status(path, signature() | {"content-length": "0"}) == 404


def test_only_a_registered_key_is_heard() -> None:
    private, public = generate_key_pairs()
    another = public_key_to_bytes(public)
    for headers in (
        {},
        signature(private, another),
        signature(private, KEY),
        signature() | {"flwr-timestamp": "2026-01-01T00:00:01+00:00"},
        signature() | {"flwr-signature": "%"},
        signature() | {"flwr-signature": ""},
        signature() | {"flwr-public-key": b64encode(b"no key").decode()},
    ):
        assert status("/v1/fleet/push-object", headers | {"content-length": "5"}) == 412


def test_a_request_must_say_its_length_and_be_of_bounded_size() -> None:
    def of(**headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return status("/v1/fleet/push-object", signature() | named)

    assert of() == 411
    assert of(transfer_encoding="chunked") == 411
    assert of(transfer_encoding="chunked", content_length="5") == 411
    assert of(content_length="-5") == 411
    assert of(content_length=str(LARGEST_REQUEST + 1)) == 413


def test_a_missing_certificate_is_named_in_one_line(tmp_path: Path) -> None:
    options = [part for name in ("ca-cert", "cert", "key") for part in (f"--ssl-{name}file", str(tmp_path / name))]
    done = CliRunner().invoke(app, ["flower", "superlink", *options, "--database", str(tmp_path / "state.db")])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == f"--ssl-ca-certfile: {tmp_path / 'ca-cert'} is not a file"

"""The pull of one reply from the SuperLink: nothing is waited for, and nothing larger than an honest reply is taken in.

In the SuperLink's store a reply is an envelope and a tree of objects: the message, its records, their arrays and the
chunks of these. Flower's own pull waits for objects until the sender's push session ends, and puts arrays together as
large as their sender says. Here a pull looks which objects have come, counts their bytes while they are read, and
counts what arrays will unpack to before any is put together.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import cast

import httpx
from flwr.app import Message
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.proto.message_pb2 import Message as Envelope
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_head_values_from_object_content
from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry, inflate_object_from_contents
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.run import RunNotRunningException
from flwr.superlink.grid.http_grid import HttpGrid

from fedceo.deploy.messages import RefusedError, Size

CHUNKS = 4
"""Depth of chunks in the tree of a reply: message, content, record, array, chunk."""

WRAPPING = 64
"""Bytes that an object may take in an answer in addition to its own."""


class GoneError(Exception):
    """A reply whose objects have not come and will not come any more."""


class Pull:
    """One reply, and what has come of it so far."""

    def __init__(self, grid: HttpGrid, name: str, size: Size, seconds: float) -> None:
        """
        Args:
            name: the id of the message that is answered.
            size: the most that an honest reply holds.
            seconds: after which nothing more is asked for.
        """
        self.grid, self.name, self.size = grid, name, size
        self._end = time.monotonic() + seconds
        self._root = ""
        self._error: Message | None = None
        self._missing: list[tuple[str, bool]] = []
        self._contents: dict[str, bytes] = {}
        self._heads, self._data = size.heads, size.data

    def look(self) -> Message | None:
        """The reply if all of it is there; raises RefusedError or GoneError where it cannot come to be."""
        try:
            if not self._root:
                self._open()
            if self._error is not None:
                return self._error
            while self._missing:
                if not self._take(*self._missing[-1]):
                    return None
                self._missing.pop()
            return self._message() if self._root else None
        except httpx.HTTPError as error:
            hopeless = self.grid._retry_invoker.should_giveup  # which also ends a run that was stopped
            if hopeless is not None and hopeless(error) and isinstance(error, httpx.TransportError):
                raise
            return None  # a SuperLink that is out of reach or too busy to answer is asked again at the next look

    def discard(self) -> None:
        """Let the SuperLink forget the objects, whether they were wanted or not."""
        if self._root:
            with suppress(httpx.HTTPError, RunNotRunningException):
                self.grid._runtime_client.ConfirmMessageReceived(
                    ConfirmMessageReceivedRequest(
                        node=self.grid.node, run_id=self.grid.run.run_id, message_object_id=self._root
                    )
                )

    def _open(self) -> None:
        """Read the envelope if it is there; from then on the objects of the reply are known by name."""
        found = self._envelope()
        if found is None:
            return
        envelope, tree = found
        self._root = envelope.metadata.message_id
        if envelope.HasField("error"):
            self._error = message_from_proto(envelope)
            return
        depths: dict[str, int] = {}
        for name, depth in _named(ObjectTree.FromString(tree)) if tree is not None else ():
            depths[name] = min(depth, depths.get(name, depth))
        if tree is None or len(depths) > self.size.objects:
            raise RefusedError(f"more than {self.size.objects} objects")
        # the last is pulled first: small ones before the chunks, which a reply that is refused never gets to
        self._missing = [(name, depth == CHUNKS) for name, depth in sorted(depths.items(), key=lambda item: -item[1])]

    def _take(self, name: str, chunk: bool) -> bool:
        """Whether the object has come and is kept."""
        content = self._object(name, self._data if chunk else self._heads)
        if not content:
            return False
        if chunk != content.startswith(b"ArrayChunk "):
            raise RefusedError("objects in another order than message, content, records, arrays, chunks")
        if chunk:
            self._data -= len(content)
        else:
            self._heads -= len(content)
        self._contents[name] = content
        return True

    def _envelope(self) -> tuple[Envelope, bytes | None] | None:
        """The envelope and the tree of the reply, where they have come; None for a tree that is too large.

        An answer of the SuperLink may hold messages that nobody asked for, as many and as large as some node likes.
        """
        answer = PullAppMessagesResponse
        envelope, place, passed = None, -1, {1: 0, 2: 0}
        with self._ask("pull-messages", "PullMessages", PullAppMessagesRequest(message_ids=[self.name])) as stream:
            for number, field in fields(stream, self.size.envelope):
                if number == answer.MESSAGES_LIST_FIELD_NUMBER and envelope is None and field is not None:
                    read = Envelope.FromString(field)
                    if read.metadata.reply_to_message_id == self.name:
                        envelope, place = read, passed[number]
                if number == answer.MESSAGE_OBJECT_TREES_FIELD_NUMBER and passed[number] == place and envelope:
                    return envelope, field
                passed[number] += 1
        return None

    def _object(self, name: str, most: int) -> bytes:
        """An object's bytes, none while it has not come."""
        request = PullObjectRequest(node=self.grid.node, run_id=self.grid.run.run_id, object_id=name)
        answer = bytearray()
        with self._ask("pull-object", "PullObject", request) as stream:
            for part in stream:
                answer += part
                if len(answer) > most + WRAPPING:
                    raise RefusedError(f"larger than the {self.size.data} bytes that were asked for")
        response = PullObjectResponse.FromString(bytes(answer))
        if not response.object_found:
            raise GoneError("its objects did not come in time")
        return response.object_content

    def _message(self) -> Message:
        left = self.size.data
        for content in self._contents.values():
            kind, children, _ = get_object_head_values_from_object_content(content)
            if kind == "Array":
                body = json.loads(get_object_body(content, inflatable_class_registry[kind]))
                left -= sum(len(self._contents[children[place]]) for place in body["arraychunk_ids"])
            if left < 0:  # a chunk can be named as often as the sender likes
                raise RefusedError(f"unpacks to more than the {self.size.data} bytes that were asked for")
        message = cast(Message, inflate_object_from_contents(self._root, self._contents))
        if message.metadata.reply_to_message_id != self.name:
            raise RefusedError("answers another message inside than outside")
        message.metadata.__dict__["_message_id"] = self._root
        return message

    @contextmanager
    def _ask(
        self, path: str, method: str, request: PullAppMessagesRequest | PullObjectRequest
    ) -> Iterator[Iterator[bytes]]:
        """The answer of the SuperLink, as it comes; Flower's own client would read all of it first."""
        client = self.grid._runtime_client
        posted = client._client.build_request(
            "POST",
            f"{client._base_url}/v1/runtime/{path}",
            content=request.SerializeToString(),
            headers={"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE, "accept-encoding": "identity"},
        )
        context = ProtobufRequestContext(f"/flwr.proto.Runtime/{method}", request, posted)
        response = client._send(context, stream=True)
        try:
            response.raise_for_status()
            yield self._in_time(response.iter_raw())
        finally:
            response.close()

    def _in_time(self, stream: Iterator[bytes]) -> Iterator[bytes]:
        for part in stream:
            yield part
            if time.monotonic() > self._end:
                raise GoneError("it did not come in time")


def _named(tree: ObjectTree, depth: int = 0) -> Iterator[tuple[str, int]]:
    """The names of a tree with their depths; protobuf has refused trees that are too deep to walk."""
    if depth > CHUNKS:
        raise RefusedError("objects inside one another, deeper than chunks of arrays")
    yield tree.object_id, depth
    for child in tree.children:
        yield from _named(child, depth + 1)


def fields(stream: Iterator[bytes], most: int) -> Iterator[tuple[int, bytes | None]]:
    """The fields of a protobuf message that consists of submessages, as number and bytes.

    A field of more than `most` bytes is read over and given as None.
    """
    buffer = bytearray()

    def has(count: int) -> bool:
        while len(buffer) < count:
            part = next(stream, None)
            if part is None:
                return False
            buffer.extend(part)
        return True

    def varint() -> int:
        value, shift = 0, 0
        while has(1):
            byte = buffer.pop(0)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
        raise ValueError("an answer that ends in the middle of a field")

    while has(1):
        number, length = varint() >> 3, varint()
        if length <= most and has(length):
            yield number, bytes(buffer[:length])
            del buffer[:length]
            continue
        skipped = length
        while skipped:
            if not has(1):
                raise ValueError("an answer that ends in the middle of a field")
            taken = min(skipped, len(buffer))
            del buffer[:taken]
            skipped -= taken
        yield number, None

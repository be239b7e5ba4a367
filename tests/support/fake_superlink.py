"""A SuperLink in memory that speaks the protocol of the server's app; Flower's own grid asks it without a network."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.message_pb2 import Message as Envelope
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from tests.support.lying_replies import stored

Answer = Callable[[Message], Message | None]
"""A node's reply to a message, where it replies."""


class Body(httpx.SyncByteStream):
    """An answer's bytes in parts, as a network gives them; `read` counts those that were asked for."""

    def __init__(self, answer: bytes) -> None:
        self.answer, self.read = answer, 0

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self.answer), 65536):
            part = self.answer[start : start + 65536]
            self.read += len(part)
            yield part


@dataclass
class FakeSuperLink:
    """Nodes answer as soon as they are asked.

    Attributes:
        nodes: id of a node -> its answer.
        withheld: nodes whose objects do not come, but for as many as the number says.
        unasked: envelopes that are among the next replies.
        status: id of a node -> HTTP statuses with which the first questions for its reply are answered.
    """

    nodes: dict[int, Answer]
    withheld: dict[int, int] = field(default_factory=dict)
    unasked: list[Envelope] = field(default_factory=list)
    status: dict[int, list[int]] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    replies: dict[str, tuple[Envelope, ObjectTree]] = field(default_factory=dict)
    bodies: list[Body] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def grid(self) -> HttpGrid:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        grid = HttpGrid("127.0.0.1:1", insecure=True, token="any")
        grid.set_run(Run.create_empty(1))
        client = httpx.Client(transport=httpx.MockTransport(self._handle))
        grid._runtime_client._client.close()
        grid._runtime_client._client = client
        return grid

    def _handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1/runtime/")
        handlers = {
            "push-messages": self._push_messages,
            "push-object": self._push_object,
            "pull-messages": self._pull_messages,
            "pull-object": self._pull_object,
            "confirm-message-received": self._confirm,
        }
        with self._one_at_a_time:
            status, answer = handlers[path](request.content)
        body = Body(answer.SerializeToString())
        self.bodies.append(body)
        return httpx.Response(status, stream=body)

    def _push_messages(self, content: bytes) -> tuple[int, Any]:
        request = PushAppMessagesRequest.FromString(content)
        names = [tree.object_id for tree in request.message_object_trees]
        self._waiting = {
            tree.object_id: {part.object_id for part in iterate_object_tree(tree)}
            for tree in request.message_object_trees
        }
        return 200, PushAppMessagesResponse(
            message_ids=names, objects_to_push=set().union(*self._waiting.values()), session_id="one"
        )

    def _push_object(self, content: bytes) -> tuple[int, Any]:
        request = PushObjectRequest.FromString(content)
        self.objects[request.object_id] = request.object_content
        for root, parts in self._waiting.items():
            if parts <= set(self.objects) and root not in self.replies:
                self._deliver(root)
        return 200, PushObjectResponse(stored=True)

    def _deliver(self, root: str) -> None:
        question = inflate_object_from_contents(root, dict(self.objects))
        assert isinstance(question, Message)
        question.metadata.__dict__["_message_id"] = root
        node = question.metadata.dst_node_id
        reply = self.nodes[node](question)
        if reply is not None:
            tree, contents = stored(reply)
            come = self.withheld.get(node, len(contents))
            self.objects |= {name: part if place < come else b"" for place, (name, part) in enumerate(contents.items())}
            self.replies[root] = message_to_proto(remove_content_from_message(reply)), tree

    def _pull_messages(self, content: bytes) -> tuple[int, Any]:
        names = PullAppMessagesRequest.FromString(content).message_ids
        for name in names:
            sender = self.replies[name][0].metadata.src_node_id if name in self.replies else 0
            if self.status.get(sender):
                return self.status[sender].pop(0), PullAppMessagesResponse()
        found = [self.replies.pop(name) for name in names if name in self.replies]
        envelopes = [*self.unasked, *(envelope for envelope, _ in found)]
        trees = [*(ObjectTree(object_id="0" * 64) for _ in self.unasked), *(tree for _, tree in found)]
        self.unasked = []
        return 200, PullAppMessagesResponse(messages_list=envelopes, message_object_trees=trees)

    def _pull_object(self, content: bytes) -> tuple[int, Any]:
        part = self.objects.get(PullObjectRequest.FromString(content).object_id)
        return 200, PullObjectResponse(
            object_found=part is not None, object_available=bool(part), object_content=part or b""
        )

    def _confirm(self, content: bytes) -> tuple[int, Any]:
        self.confirmed.append(ConfirmMessageReceivedRequest.FromString(content).message_object_id)
        return 200, ConfirmMessageReceivedResponse()

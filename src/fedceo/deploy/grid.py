"""Flower's grid, in which one node's unreadable reply harms no other.

Flower parses replies while it fetches them, and fetches all available ones in one call: a reply that cannot be parsed
ends the call, and with it the server's app. Here every reply is fetched by itself, and one that cannot be parsed is an
error of the node that sent it.
"""

import time
from collections.abc import Iterable
from typing import Any

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two polls for replies; each pause is twice the one before."""

UNREADABLE = 0
"""Flower's code for an error of unknown kind."""


class CarefulGrid(Grid):
    """A grid that wraps another one and fetches replies one by one, in any order."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._asked: dict[str, tuple[int, str]] = {}

    def set_run(self, run: Any) -> None:
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        return self.grid.run

    def create_message(self, *args: Any, **options: Any) -> Message:
        return self.grid.create_message(*args, **options)

    def get_node_ids(self) -> Iterable[int]:
        return self.grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        return self.grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """The ids of the messages, in their order; an empty text for a message that could not be sent."""
        sent = list(messages)
        names = [name or "" for name in self.grid.push_messages(sent)]
        for message, name in zip(sent, names, strict=bool(names)):  # Flower gives none where all are too large
            if name:
                self._asked[name] = message.metadata.dst_node_id, message.metadata.message_type
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [reply for name in message_ids for reply in self._pull(name)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """All replies, or those that came before the timeout."""
        waiting = {name for name in self.push_messages(messages) if name}
        end = float("inf") if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        pause = FIRST_PAUSE
        while waiting:
            found = self.pull_messages(sorted(waiting))
            replies += found
            waiting -= {reply.metadata.reply_to_message_id for reply in found}
            left = end - time.monotonic()
            if not waiting or left <= 0:
                break
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)
        return replies

    def _pull(self, name: str) -> list[Message]:
        try:
            found = list(self.grid.pull_messages([name]))
        except httpx.HTTPError:  # the connection to the SuperLink failed, which is no fault of the node
            raise
        except Exception as error:  # a stranger's bytes can make Flower raise anything
            found = [self._error_of(name, f"a reply that cannot be read, {type(error).__name__}: {error}")]
        if found:
            self._asked.pop(name, None)
        return found

    def _error_of(self, name: str, reason: str) -> Message:
        node, kind = self._asked[name]
        question = Message(RecordDict(), node, kind)
        question.metadata.__dict__["_message_id"] = name
        return Message(Error(UNREADABLE, reason), reply_to=question)

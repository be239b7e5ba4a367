"""Flower's grid, made so that one node's reply cannot take the others' with it.

Flower reads the bytes of a reply while it fetches it, and fetches all that have come in one call: one that cannot be
read ends the call, and with it the server's app. Here every reply is fetched by itself, and one that cannot be read is
an error of the node that sent it.
"""

import time
from collections.abc import Iterable
from typing import Any

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two looks for replies; each pause is twice the one before."""

UNREADABLE = 0
"""Flower's code for an error of unknown kind."""


class CarefulGrid(Grid):
    """Answers like the grid it is made of; replies come in any order."""

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
        """The names of the messages, in their order; an empty one for a message that could not be sent."""
        sent = list(messages)
        names = [name or "" for name in self.grid.push_messages(sent)]
        for message, name in zip(sent, names, strict=bool(names)):  # none at all where they are too large together
            if name:
                self._asked[name] = message.metadata.dst_node_id, message.metadata.message_type
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [reply for name in message_ids for reply in self._pull(name)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """All replies, or those that came in time."""
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
        except httpx.HTTPError:  # the way to the SuperLink, which is nobody's lie
            raise
        except Exception as error:  # whatever the bytes of a stranger make Flower raise
            found = [self._error_of(name, f"a reply that cannot be read, {type(error).__name__}: {error}")]
        if found:
            self._asked.pop(name, None)
        return found

    def _error_of(self, name: str, reason: str) -> Message:
        node, kind = self._asked[name]
        question = Message(RecordDict(), node, kind)
        question.metadata.__dict__["_message_id"] = name
        return Message(Error(UNREADABLE, reason), reply_to=question)

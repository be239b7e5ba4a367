"""Flower's grid, in which one node's reply harms no other, whether it cannot be read, comes bit by bit or is too large.

Flower pulls replies one after another, waits for whatever belongs to each, and parses them while it fetches them: a
reply that does not come to its end or cannot be parsed holds up or ends the server's app. Here every reply is looked
for in a thread of its own; what is not there at the deadline is given up, and what cannot be read is an error of the
node that sent it.
"""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.superlink.grid.http_grid import HttpGrid

from fedceo.deploy.messages import RefusedError, Size
from fedceo.deploy.pulling import GoneError, Pull

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two looks for replies; each pause is twice the one before."""

PATIENCE = 1.0
"""Seconds that a look may take before the others are no longer kept waiting for it."""


@dataclass(frozen=True)
class Question:
    """A message that was sent, and the pull of its reply; a simulation has none, since nobody there is a stranger."""

    node: int
    kind: str
    pull: Pull | None


class CarefulGrid(Grid):
    """A grid that wraps another one and looks for replies side by side."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._asked: dict[str, Question] = {}
        self._looking: set[str] = set()
        self._found: dict[str, list[Message] | BaseException] = {}
        self._news = threading.Condition()
        """The lock on the three above, notified when a look ends."""

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
        sizes = [Size.of_reply(message) for message in sent]
        names = [name or "" for name in self.grid.push_messages(sent)]
        # Flower gives no names at all where the messages together are too large
        for message, size, name in zip(sent, sizes, names, strict=bool(names)):
            if name:
                about = message.metadata
                pull = Pull(self.grid, name, size, about.ttl) if isinstance(self.grid, HttpGrid) else None
                self._asked[name] = Question(about.dst_node_id, about.message_type, pull)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that are there, in the order of the messages."""
        names = list(message_ids)
        found = self._look(set(names))
        return [reply for name in names for reply in found.get(name, [])]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """All replies, or those that came before the timeout."""
        waiting = {name for name in self.push_messages(messages) if name}
        end = float("inf") if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        pause = FIRST_PAUSE
        while waiting:
            found = self._look(waiting)
            replies += [reply for each in found.values() for reply in each]
            waiting -= set(found)
            left = end - time.monotonic()
            if not waiting or left <= 0:
                break
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)
        for name in waiting:
            self._forget(name)
        return replies

    def _look(self, names: set[str]) -> dict[str, list[Message]]:
        """Look for all replies at once; by message, those that were found now or by a look that took longer."""
        with self._news:
            begun = (names & set(self._asked)) - self._looking - set(self._found)
            self._looking |= begun
            for name in sorted(begun):
                # a daemon: neither the next round nor the end of the process waits for a reply that does not come
                threading.Thread(target=self._pull, args=(name, self._asked[name]), daemon=True).start()
            self._news.wait_for(lambda: not begun & self._looking, PATIENCE)
            ended = {name: self._found.pop(name) for name in sorted(names & set(self._found))}
        replies: dict[str, list[Message]] = {}
        for name, found in ended.items():
            if isinstance(found, BaseException):
                raise found
            if found:
                replies[name] = found
                self._forget(name)
        return replies

    def _pull(self, name: str, question: Question) -> None:
        """One look, in a thread of its own."""
        found: list[Message] | BaseException
        try:
            if question.pull is None:
                found = list(self.grid.pull_messages([name]))
            else:
                reply = question.pull.look()
                found = [] if reply is None else [reply]
        except httpx.TransportError as error:  # the SuperLink cannot be reached, which is no fault of the node
            found = error
        except GoneError as error:
            found = [_error_of(name, question, ErrorCode.MESSAGE_UNAVAILABLE, str(error))]
        except RefusedError as error:
            found = [_error_of(name, question, ErrorCode.UNKNOWN, str(error))]
        except Exception as error:  # a stranger's bytes can make Flower raise anything
            why = f"a reply that cannot be read, {type(error).__name__}: {error}"
            found = [_error_of(name, question, ErrorCode.UNKNOWN, why)]
        except BaseException as error:  # the run was stopped, which is for the thread that waits to know
            found = error
        with self._news:
            self._looking.discard(name)
            if name in self._asked:
                self._found[name] = found
            self._news.notify_all()

    def _forget(self, name: str) -> None:
        """Wait no longer for a reply, and let the SuperLink forget it."""
        with self._news:
            pull = self._asked.pop(name).pull
            self._found.pop(name, None)
        if pull is not None:
            threading.Thread(target=pull.discard, daemon=True).start()


def _error_of(name: str, question: Question, code: int, reason: str) -> Message:
    asked = Message(RecordDict(), question.node, question.kind)
    asked.metadata.__dict__["_message_id"] = name
    return Message(Error(code, reason), reply_to=asked)

"""A registry of which node stands for which client.

Every node that connects is asked for its number, `partition-id`, and nothing waits for the answer; one that is silent
or fails is asked again, each time after twice the pause: a question can be lost with the process that it came to, long
before it expires. A number belongs to the first node that claims it; where nodes have registered keys, it belongs to
that key, and the key to that number alone, also after the server restarts.
"""

import time
from collections.abc import Mapping

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedceo.deploy.messages import RefusedError, Ticket, ask, check_reply, has_come

FIRST_PAUSE = 15.0
"""Seconds until a node that has not answered is asked again; a node on a busy machine needs some to start its app."""


class NodeRegistry:
    """Clients by number, with their nodes, and the nodes that are connected now."""

    def __init__(self, clients: int, keys: Mapping[int, str], ttl: float) -> None:
        """keys: client -> its public key (PEM), where it is known; ttl: seconds after which a question expires."""
        self.clients, self.keys, self.ttl = clients, dict(keys), ttl
        self.nodes: dict[int, int] = {}
        """Client -> id of its node, connected or not."""
        self.refused: dict[int, str] = {}
        """Id of a node -> the reason why it has no client number."""
        self.failed: dict[int, str] = {}
        """Id of a node -> the error with which it answered last."""
        self._connected: dict[int, str] = {}
        self._asked: dict[str, tuple[int, Ticket]] = {}
        self._again: dict[int, tuple[float, float]] = {}
        """Id of a node -> when it is to be asked again, and the pause after that."""

    def update(self, grid: Grid) -> None:
        """List the connected nodes, ask new ones for their numbers, and read the answers that have come."""
        self._connected = {node.node_id: _registered(node.public_key) for node in grid.get_nodes()}
        questions = [
            (node, ticket, ask(MessageType.QUERY, node, ticket, self.ttl))
            for node in sorted(self._connected.keys() - {*self.nodes.values(), *self.refused})
            if self._is_due(node)
            for ticket in [Ticket.issue(0, -1)]
        ]
        if questions:
            for (node, ticket, _), name in zip(questions, grid.push_messages([q[2] for q in questions]), strict=True):
                if name:
                    self._asked[name] = node, ticket
        if self._asked:
            for reply in grid.pull_messages(list(self._asked)):
                self._take(reply)

    def present(self) -> dict[int, int]:
        """Client -> id of its node, for the nodes that are connected."""
        return {client: node for client, node in sorted(self.nodes.items()) if node in self._connected}

    def retry(self) -> None:
        """Let nodes that failed be asked again at once."""
        for node in self.failed:
            self._again.pop(node, None)
        self.failed.clear()

    def _is_due(self, node: int) -> bool:
        """Whether a node without a number is to be asked now; if so, the pause until it is asked again begins."""
        now = time.monotonic()
        due, pause = self._again.get(node, (now, FIRST_PAUSE))
        if now < due:
            return False
        self._again[node] = now + pause, 2 * pause
        return True

    def _take(self, reply: Message) -> None:
        node, ticket = self._asked.pop(reply.metadata.reply_to_message_id, (0, None))
        if ticket is None or node in self.nodes.values():  # an answer to a question that was asked again
            return
        if not has_come(reply):
            self._again.pop(node, None)
            return
        try:
            client = Ticket.of(check_reply(reply, ticket, node, arrays=False)).client
            self._bind(client, node)
            self.failed.pop(node, None)
        except RefusedError as why:
            (self.failed if reply.has_error() else self.refused)[node] = str(why)

    def _bind(self, client: int, node: int) -> None:
        if not 0 <= client < self.clients:
            raise RefusedError(f"partition-id: {client}, expected 0 to {self.clients - 1}")
        if client in self.nodes:
            raise RefusedError(f"partition-id: {client} is that of node {self.nodes[client]} already")
        key = self._connected.get(node, "")
        if self.keys.get(client, key) != key:
            raise RefusedError(f"partition-id: {client} belongs to another key")
        held = [other for other, theirs in self.keys.items() if key and theirs == key and other != client]
        if held:
            raise RefusedError(f"partition-id: {client}, but its key holds client {held[0]} (nodes.json)")
        self.nodes[client] = node
        if key:
            self.keys[client] = key


def _registered(key: bytes) -> str:
    """A node's registered public key in PEM; empty for a simulated node, which has random bytes instead."""
    return key.decode() if key.startswith(b"-----BEGIN PUBLIC KEY-----") else ""

"""A registry of which node stands for which client.

Every node that connects is asked for its number, `partition-id`, and nothing waits for the answer; one that is silent
is asked again. A number belongs to the first node that claims it; where nodes have registered keys, it belongs to that
key, and the key to that number alone, also after the server restarts.
"""

from collections.abc import Mapping

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedceo.deploy.messages import RefusedError, Ticket, ask, check_reply, has_come


class NodeRegistry:
    """Clients by number, with their nodes, and the nodes that are connected now."""

    def __init__(self, clients: int, keys: Mapping[int, str], ttl: float) -> None:
        """keys: client -> its public key (PEM), where it is known; ttl: seconds until a question is asked again."""
        self.clients, self.keys, self.ttl = clients, dict(keys), ttl
        self.nodes: dict[int, int] = {}
        """Client -> id of its node, connected or not."""
        self.refused: dict[int, str] = {}
        """Id of a node -> the reason why it has no client number."""
        self.failed: dict[int, str] = {}
        """Id of a node -> the error with which it answered; after `retry` it is asked again."""
        self._connected: dict[int, str] = {}
        self._asked: dict[str, tuple[int, Ticket]] = {}

    def update(self, grid: Grid) -> None:
        """List the connected nodes, ask new ones for their numbers, and read the answers that have come."""
        self._connected = {node.node_id: _registered(node.public_key) for node in grid.get_nodes()}
        known = {*self.nodes.values(), *self.refused, *self.failed, *(node for node, _ in self._asked.values())}
        questions = [
            (node, ticket, ask(MessageType.QUERY, node, ticket, self.ttl))
            for node in sorted(self._connected.keys() - known)
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

    def _take(self, reply: Message) -> None:
        node, ticket = self._asked.pop(reply.metadata.reply_to_message_id, (0, None))
        if ticket is None or not has_come(reply):
            return
        try:
            client = Ticket.of(check_reply(reply, ticket, node, arrays=False)).client
            self._bind(client, node)
        except RefusedError as why:
            (self.failed if reply.has_error() else self.refused)[node] = str(why)

    def retry(self) -> None:
        """Let nodes that failed be asked again."""
        self.failed.clear()

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

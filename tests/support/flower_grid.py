"""A grid in one process: real strategy, real apps, real messages; only the network is missing."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import fedceo
from fedceo.deploy.client import PrivacyMod, client_app
from fedceo.deploy.records import dealt_public_records, dealt_records
from fedceo.deploy.strategy import MethodStrategy
from fedceo.experiment.file import Experiment, parse_experiment
from fedceo.training.schedule import Schedule

Tamper = Callable[[Message], Message | None]

TABLE: dict[str, Any] = {
    "seed": 3,
    "data": {"name": "digits", "clients": 5},
    "cohort": {"size": 3},
    "train": {"rounds": 4, "local_epochs": 1, "batch_size": 16, "engine": "loop", "device": "cpu"},
    "privacy": {"mechanism": "distributed", "noise_multiplier": 0.5, "randomness": "system"},
    "method": {"name": "fedceo", "interval": 2, "strength": 10.0},
    "evaluation": {"every": 2},
    "checkpoint": {"every": 1},
}


def experiment(**sections: dict[str, Any]) -> Experiment:
    """The experiment above with fields changed; a [method] is replaced as a whole."""
    table = TABLE | {name: TABLE.get(name, {}) | fields for name, fields in sections.items()}
    if "method" in sections:
        table["method"] = sections["method"]
    return parse_experiment(table)


@dataclass
class Node:
    app: ClientApp
    number: int
    key: bytes = b""
    connected: bool = True
    tamper: Tamper | None = None
    """A change to its answers to training messages; an answer of None is lost."""


@dataclass
class LocalGrid(Grid):
    """Answers at once; `seen` keeps every message that was sent, `replies` every reply to a training message."""

    nodes: dict[int, Node]
    seen: list[Message] = field(default_factory=list)
    replies: list[Message] = field(default_factory=list)
    extra: list[Message] = field(default_factory=list)
    """Messages that turn up among the next replies without having been asked for."""
    unreadable: set[int] = field(default_factory=set)
    """Nodes whose answers to training messages Flower cannot make objects of."""
    _ready: dict[str, Message] = field(default_factory=dict)

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [number for number, node in self.nodes.items() if node.connected]

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=number, public_key=self.nodes[number].key) for number in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        name = f"message {999_999 - len(self.seen)}"  # read in another order than asked, as by a network
        message.metadata.__dict__["_message_id"] = name
        self.seen.append(message)
        node = self.nodes[message.metadata.dst_node_id]
        reply: Message | None
        if not node.connected:
            reply = Message(Error(5, "Node Unavailable"), reply_to=message)
        else:
            context = Context(1, message.metadata.dst_node_id, {"partition-id": node.number}, RecordDict(), {})
            try:
                reply = node.app(message, context)
            except Exception as error:  # as Flower does
                reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
        if message.metadata.message_type == "train":
            if node.tamper is not None:
                reply = node.tamper(reply)
            self.replies += [reply] if reply is not None else []
        if reply is not None:
            self._ready[name] = reply
        return name

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = [self._ready.pop(name) for name in list(message_ids) if name in self._ready]
        for reply in found:
            if reply.metadata.src_node_id in self.unreadable and reply.metadata.message_type == "train":
                raise ValueError("Type of object is not known")
        if any(reply.metadata.message_type == "train" for reply in found):
            found, self.extra = self.extra + found, []
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError("it would not survive a reply that cannot be read")


def pem(name: object) -> bytes:
    """A registered key as Flower keeps it."""
    return f"-----BEGIN PUBLIC KEY-----\n{name}\n-----END PUBLIC KEY-----\n".encode()


def local_grid(given: Experiment, noise: Schedule | None = None) -> LocalGrid:
    """One node a client, with ids that are not client numbers; noise: left out, the operating system's."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # which Flower sets for the server's process
    mod = PrivacyMod(given) if noise is None else PrivacyMod(given, noise)
    app = client_app(given, lambda client: dealt_records(given, client), mod)
    clients = range(given.data.clients or 0)
    return LocalGrid({1000 - 7 * client: Node(app, client, key=pem(client)) for client in clients})


def strategy(given: Experiment, out: Path, timeout: float = 0.01) -> MethodStrategy:
    """A server that deals the data of the experiment and draws its cohorts from its seed."""
    return MethodStrategy(given, dealt_public_records(given), out, timeout, Schedule(given.seed))


def simulated(given: Experiment) -> fedceo.Run:
    """The same experiment in one process, its noise drawn from the seed."""
    seeded = given.privacy.model_copy(update={"randomness": "seeded"})
    return fedceo.run(given.model_copy(update={"privacy": seeded}))

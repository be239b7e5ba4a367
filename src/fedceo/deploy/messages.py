"""The messages between server and nodes, and the server's checks of what nodes reply.

server -> node   "arrays": the weights to start from; "config": round, client, nonce, capped
node -> server   "arrays": the privatised upload;     "config": round, client, nonce; nothing else

The reply to a query for the node's client number, and that to an evaluation, is the config alone.
"""

import io
import secrets
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, ErrorCode, SType
from torch import Tensor

from fedceo.tensors.weights import Weights

ARRAYS, CONFIG = "arrays", "config"

MOST_HEADER = 1024
"""Bytes that an array may take in addition to its numbers."""

MOST_RECORD = 4096
"""Bytes that a message, its content or a record may take in addition to the names of its parts."""

MOST_REFERENCE = 100
"""Bytes that it may take to refer to one object, and to wrap one chunk of an array."""

MOST_ENVELOPE = 65536
"""Bytes that the envelope of a reply may take, the text of an error included."""

NOT_COME = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
"""Codes of the errors by which Flower says that there is no reply."""


class RefusedError(Exception):
    """A reply that is refused; the message is one line with the reason."""


@dataclass(frozen=True)
class Ticket:
    """The identity of one message; its reply carries the same, so that none is accepted twice or in another round."""

    round: int
    client: int
    nonce: str

    @staticmethod
    def issue(round_: int, client: int) -> "Ticket":
        return Ticket(round_, client, secrets.token_hex(16))

    @staticmethod
    def of(content: RecordDict) -> "Ticket":
        config = content.config_records.get(CONFIG, ConfigRecord())
        round_, client, nonce = (config.get(name) for name in ("round", "client", "nonce"))
        if not (isinstance(round_, int) and isinstance(client, int) and isinstance(nonce, str)):
            raise RefusedError("config without round, client and nonce")
        return Ticket(round_, client, nonce)


@dataclass(frozen=True)
class Size:
    """The most that an honest reply holds.

    Attributes:
        objects: number of objects in Flower's store: the message, its content, records, arrays, chunks of these.
        data: bytes of all chunks.
        heads: bytes of all other objects.
    """

    objects: int
    data: int
    heads: int

    @property
    def envelope(self) -> int:
        """Bytes of the envelope, and of the list of objects."""
        return MOST_ENVELOPE + MOST_REFERENCE * self.objects

    @staticmethod
    def of_reply(question: Message) -> "Size":
        """The size of what a node replies: arrays as it was sent to train from, none to any other question."""
        arrays: dict[str, Array] = {}
        if question.metadata.message_type == MessageType.TRAIN:
            arrays = dict(question.content.array_records.get(ARRAYS, {}))
        bytes_ = [len(array.data) + MOST_HEADER for array in arrays.values()]
        chunks = sum(-(-count // FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE) for count in bytes_)
        names = sum(6 * len(name) + MOST_HEADER for name in arrays)  # 6: as many as JSON takes for one character
        return Size(
            objects=4 + len(arrays) + chunks,
            data=sum(bytes_) + MOST_REFERENCE * chunks,
            heads=4 * MOST_RECORD + names + MOST_REFERENCE * (len(arrays) + chunks),
        )


def ask(
    kind: str, node: int, ticket: Ticket, ttl: float, weights: Weights | None = None, capped: bool = False
) -> Message:
    """A message for one node, which shares no object with another node's message.

    Args:
        kind: train, evaluate or query.
        ttl: seconds after which message and reply are void.
        capped: whether the client has reached its cap and sends noise alone.
    """
    content = RecordDict({CONFIG: ConfigRecord({**asdict(ticket), "capped": capped})})
    if weights is not None:
        content[ARRAYS] = pack(weights)
    return Message(content, dst_node_id=node, message_type=kind, ttl=ttl, group_id=str(ticket.round))


def answer(message: Message, ticket: Ticket, weights: Weights | None = None) -> Message:
    """A node's reply, which holds the ticket and the privatised weights and nothing else."""
    content = RecordDict({CONFIG: ConfigRecord(asdict(ticket))})
    if weights is not None:
        content[ARRAYS] = pack(weights)
    return Message(content, reply_to=message)


def pack(weights: Weights) -> ArrayRecord:
    return ArrayRecord({name: Array(w.detach().cpu().numpy()) for name, w in weights.items()})


def unpack(record: ArrayRecord, like: Weights) -> dict[str, Tensor]:
    """The tensors of a record, on the device of `like`; other names, shapes or dtypes are refused before parsing."""
    if set(record) != set(like):
        missing, unknown = sorted(set(like) - set(record)), sorted(set(record) - set(like))
        raise RefusedError(f"tensors missing: {_few(missing)}; unknown: {_few(unknown)}")
    return {name: _unpack_one(name, record[name], w) for name, w in like.items()}


def _unpack_one(name: str, array: Array, like: Tensor) -> Tensor:
    dtype = str(like.dtype).removeprefix("torch.")
    if tuple(array.shape) != tuple(like.shape) or array.dtype != dtype:
        raise RefusedError(
            f"{name} is {_line(array.dtype)} {tuple(array.shape)[:8]}, expected {dtype} {tuple(like.shape)}"
        )
    most = like.numel() * like.element_size() + MOST_HEADER
    if len(array.data) > most:
        raise RefusedError(f"{name} takes {len(array.data)} bytes, expected at most {most}")
    try:
        values = _numbers(array)
    except Exception as error:  # a stranger's bytes can make the parser raise anything; the round goes on
        raise RefusedError(f"{name} cannot be read: {_line(error)}") from None
    if values.shape != tuple(like.shape) or str(values.dtype) != dtype:
        raise RefusedError(f"{name} holds {values.dtype} {values.shape}, expected {dtype} {tuple(like.shape)}")
    return torch.from_numpy(values.copy()).to(like.device)


def _numbers(array: Array) -> "np.ndarray[Any, Any]":
    """The numbers of an array as a view of its bytes.

    np.load would make room for as many as the header says, and open an archive of arrays as gladly as one array.
    """
    if array.stype != SType.NUMPY:
        raise ValueError(f"stored as {array.stype}")
    stream = io.BytesIO(array.data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("another version of numpy's format than 1.0")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=MOST_HEADER)
    values = np.frombuffer(array.data, dtype, offset=stream.tell())
    return values.reshape(shape, order="F" if by_columns else "C")


def has_come(reply: Message) -> bool:
    """Whether a node replied at all; otherwise it is Flower that says that nothing came."""
    return not (reply.has_error() and reply.error.code in NOT_COME)


def check_reply(reply: Message, ticket: Ticket, node: int, *, arrays: bool) -> RecordDict:
    """The content of a reply to the message with that ticket; raises RefusedError with the reason."""
    if reply.has_error():
        raise RefusedError(f"error {reply.error.code}: {_line(reply.error.reason)}")
    if not reply.has_content():
        raise RefusedError("empty")
    if reply.metadata.src_node_id != node:
        raise RefusedError(f"sent by node {reply.metadata.src_node_id}, expected {node}")
    expected = {CONFIG, ARRAYS} if arrays else {CONFIG}
    if set(reply.content) != expected:
        raise RefusedError(f"records {_few(sorted(reply.content))}, expected {_few(sorted(expected))}")
    given = Ticket.of(reply.content)
    extra = sorted(set(reply.content.config_records[CONFIG]) - set(asdict(given)))
    if extra:
        raise RefusedError(f"config with {_few(extra)}, expected round, client and nonce alone")
    if given.round != ticket.round:
        raise RefusedError(f"of round {given.round}, expected {ticket.round}")
    if given.nonce != ticket.nonce:
        raise RefusedError("nonce of another message")
    return reply.content


def read_upload(reply: Message, ticket: Ticket, node: int, start: Weights) -> dict[str, Tensor]:
    """The upload of a reply; raises RefusedError with the reason.

    Args:
        start: the weights from which the client was told to start, whose names, shapes and dtypes are expected.
    """
    content = check_reply(reply, ticket, node, arrays=True)
    if Ticket.of(content).client != ticket.client:
        raise RefusedError(f"for client {Ticket.of(content).client}, expected {ticket.client}")
    record = content[ARRAYS]
    if not isinstance(record, ArrayRecord):
        raise RefusedError(f"{ARRAYS} is not a record of arrays")
    upload = unpack(record, start)
    if not all(bool(torch.isfinite(w).all()) for w in upload.values()):
        raise RefusedError("NaN or Inf in the upload")
    return upload


def _few(names: list[str]) -> str:
    shown = ", ".join(_line(name)[:40] for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "none"


def _line(text: object) -> str:
    return " ".join(str(text).split())[:200]

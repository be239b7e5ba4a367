"""Replies that a node can make of Flower's objects and that no honest node makes."""

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from fedceo.deploy.messages import ARRAYS, CONFIG, Ticket

CHUNK = 5 * 2**20


def honest(question: Message, client: int) -> Message:
    """The weights of the question, moved a little and by each client otherwise, with the right ticket."""
    given = question.content.array_records.get(ARRAYS, ArrayRecord())
    return _reply(question, client, {name: Array(moved(array.numpy(), client)) for name, array in given.items()})


def moved(values: np.ndarray[Any, Any], client: int) -> np.ndarray[Any, Any]:
    return np.asarray(values + np.float32(1e-4 * (1 + client)))


def bomb(question: Message, client: int, times: int = 400) -> Message:
    """One chunk of 5 MiB that the first array names many times: 400 times are 2 GiB."""
    chunk = ArrayChunk(memoryview(bytes(CHUNK)))
    return _with_first(question, client, [chunk] * times)


def small_bomb(question: Message, client: int) -> Message:
    """As a bomb, of a chunk that is no larger than those that were asked for."""
    first = next(iter(question.content.array_records[ARRAYS].values()))
    return _with_first(question, client, [ArrayChunk(memoryview(first.data))] * 2000)


def heap(question: Message, client: int) -> Message:
    """An array of 40 MiB in chunks as they should be, whatever was asked for."""
    chunks = [ArrayChunk(memoryview(bytes([number]) * CHUNK)) for number in range(8)]
    return _with_first(question, client, chunks)


def crowd(question: Message, client: int) -> Message:
    """A thousand arrays that nobody asked for."""
    reply = honest(question, client)
    record = reply.content.array_records[ARRAYS]
    first = min(record.values(), key=lambda array: len(array.data))
    for number in range(1000):
        record[f"more {number}"] = Array(first.dtype, tuple(first.shape), f"{number}", first.data)
    return reply


def speech(question: Message, client: int) -> Message:
    """A config with a list of numbers, each of which takes one byte on the wire and many in memory."""
    reply = honest(question, client)
    reply.content.config_records[CONFIG]["words"] = [1] * 100_000
    return reply


def nest(question: Message, client: int) -> Message:
    """Names of arrays as a deep nest of lists."""
    reply = honest(question, client)
    record = reply.content.array_records[ARRAYS]
    names = "[" * 500_000 + "]" * 500_000

    class Nested(ArrayRecord):
        def deflate(self) -> bytes:
            head = f"ArrayRecord {','.join(self.children)} {len(names)}"
            return head.encode() + b"\x00" + names.encode()

    reply.content[ARRAYS] = Nested(dict(record))
    return reply


def misplaced(question: Message, client: int) -> Message:
    """A chunk in the place of a record."""
    reply = honest(question, client)

    class Misplaced(ConfigRecord):
        def deflate(self) -> bytes:
            return b"ArrayChunk  3\x00abc"

    reply.content[CONFIG] = Misplaced()
    return reply


LIES: dict[str, Callable[[Message, int], Message]] = {
    lie.__name__: lie for lie in (bomb, small_bomb, heap, crowd, speech, nest, misplaced)
}


def stored(message: Message) -> tuple[ObjectTree, dict[str, bytes]]:
    """What a node pushes of a reply: the tree, and each object's bytes; sets the message's id."""
    message.metadata.__dict__["_message_id"] = message.object_id
    objects = get_all_nested_objects(message)
    return get_object_tree(message), {name: thing.deflate() for name, thing in objects.items()}


def _reply(question: Message, client: int, arrays: dict[str, Array]) -> Message:
    asked = Ticket.of(question.content)
    config = ConfigRecord({"round": asked.round, "client": client, "nonce": asked.nonce})
    content = RecordDict({CONFIG: config})
    if arrays:
        content[ARRAYS] = ArrayRecord(arrays)
    return Message(content, reply_to=question)


def _with_first(question: Message, client: int, chunks: list[ArrayChunk]) -> Message:
    """The first array is made of these chunks, and says what it should be."""
    reply = honest(question, client)
    record = reply.content.array_records[ARRAYS]
    name = next(iter(record))
    lie = Array(record[name].dtype, tuple(record[name].shape), record[name].stype, b"")
    names = {place: chunk.object_id for place, chunk in {id(chunk): chunk for chunk in chunks}.items()}
    lie.__dict__["_chunks"] = [(names[id(chunk)], chunk) for chunk in chunks]
    record[name] = lie
    return reply

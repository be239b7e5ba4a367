"""Pulls of replies against Flower's own grid: what is late, too large or forged harms nobody but its sender."""

import tracemalloc
from collections.abc import Callable
from functools import partial

import httpx
import pytest
import torch

pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")

from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

from fedceo.deploy.grid import CarefulGrid
from fedceo.deploy.messages import Size, Ticket, ask, has_come, read_upload
from fedceo.deploy.pulling import fields
from tests.support.fake_superlink import Answer, FakeSuperLink
from tests.support.lying_replies import LIES, honest, moved

WEIGHTS = {"layer.weight": torch.randn(300, 400), "layer.bias": torch.randn(300), "scale": torch.tensor(1.0)}
LIAR = 2


def answers(**others: Answer) -> dict[int, Answer]:
    """Three nodes that answer as they should, but for those named `node_N`."""
    plain: dict[int, Answer] = {node: partial(honest, client=node) for node in (1, 2, 3)}
    return plain | {int(name.removeprefix("node_")): answer for name, answer in others.items()}


def round_of(link: FakeSuperLink, seconds: float = 0.3, kind: str = MessageType.TRAIN) -> dict[int, Message]:
    """Node -> its reply, or the error that stands for it."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    weights = WEIGHTS if kind == MessageType.TRAIN else None
    asked = {node: ask(kind, node, Ticket.issue(1, node), 60.0, weights) for node in link.nodes}
    replies = CarefulGrid(link.grid()).send_and_receive(asked.values(), timeout=seconds)
    nodes = {question.metadata.message_id: node for node, question in asked.items()}
    found = {nodes[reply.metadata.reply_to_message_id]: reply for reply in replies}
    for node, reply in found.items():
        if not reply.has_error() and weights is not None:
            upload = read_upload(reply, Ticket.of(asked[node].content), node, WEIGHTS)
            sent = {name: torch.from_numpy(moved(w.numpy(), node)) for name, w in WEIGHTS.items()}
            assert all(torch.equal(upload[name], w) for name, w in sent.items())
    return found


def reason(reply: Message) -> str:
    assert reply.has_error() and reply.error.reason is not None
    return reply.error.reason


def test_honest_replies_come_as_they_were_sent_and_leave_the_store() -> None:
    link = FakeSuperLink(answers())
    found = round_of(link)
    assert sorted(found) == [1, 2, 3] and not any(reply.has_error() for reply in found.values())


@pytest.mark.parametrize("come", [0, 1, 3])
def test_objects_that_do_not_come_are_absent_and_the_others_count(come: int) -> None:
    link = FakeSuperLink(answers(), withheld={LIAR: come})
    assert sorted(round_of(link)) == [1, 3]


def test_objects_that_the_superlink_has_given_up_are_a_reply_that_did_not_come() -> None:
    link = FakeSuperLink(answers())
    deliver = link._deliver

    def lose(root: str) -> None:
        before = set(link.objects)
        deliver(root)
        if link.replies[root][0].metadata.src_node_id == LIAR:
            for name in set(link.objects) - before:
                del link.objects[name]

    link._deliver = lose  # type: ignore[method-assign]
    found = round_of(link)
    assert sorted(found) == [1, 2, 3]
    assert not has_come(found[LIAR]) and has_come(found[1])


REASONS = {
    "bomb": "larger than",
    "small_bomb": "unpacks to more than",
    "heap": "objects",
    "crowd": "more than",
    "speech": "larger than",
    "nest": "larger than",
    "misplaced": "in another order",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_reply_larger_than_an_honest_one_is_refused_before_it_is_taken_in(lie: str) -> None:
    link = FakeSuperLink(answers(node_2=lambda question: LIES[lie](question, LIAR)))
    found = round_of(link, seconds=20.0)
    assert sorted(found) == [1, 2, 3]
    assert REASONS[lie] in reason(found[LIAR])
    assert not found[1].has_error() and not found[3].has_error()
    assert max(body.read for body in link.bodies) < 2_000_000


@pytest.mark.parametrize("lie", LIES)
def test_the_memory_of_a_round_does_not_depend_on_what_a_liar_sends(lie: str) -> None:
    link = FakeSuperLink(answers(node_2=lambda question: LIES[lie](question, LIAR)))
    grid, asked = CarefulGrid(link.grid()), ask(MessageType.TRAIN, LIAR, Ticket.issue(1, LIAR), 60.0, WEIGHTS)
    names = grid.push_messages([asked])
    tracemalloc.start()
    try:
        reply = grid.pull_messages(names)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert reply
    answered = max(len(body.answer) for body in link.bodies)
    assert peak < 2 * answered + 10 * 2**20  # the false SuperLink makes its answers in this process too


def test_a_question_without_arrays_takes_no_reply_with_arrays() -> None:
    other = ask(MessageType.TRAIN, LIAR, Ticket.issue(1, LIAR), 60.0, WEIGHTS)

    def chatter(question: Message) -> Message:
        reply = honest(question, LIAR)
        reply.content["arrays"] = other.content["arrays"]
        return reply

    found = round_of(FakeSuperLink(answers(node_2=chatter)), kind=MessageType.QUERY)
    assert "objects" in reason(found[LIAR])
    assert not found[1].has_error()


def test_messages_that_nobody_asked_for_cost_nobody_a_reply() -> None:
    """A node may send the server messages in the server's own name; Flower hands them out with the next reply."""
    link = FakeSuperLink(answers())
    for size in (10, 30_000_000):
        forged = Message(RecordDict({"x": ConfigRecord({"x": b"0" * size})}), 1, MessageType.TRAIN)
        link.unasked.append(message_to_proto(forged))
    found = round_of(link, seconds=20.0)
    assert sorted(found) == [1, 2, 3] and not any(reply.has_error() for reply in found.values())


def test_a_nodes_error_comes_without_its_objects() -> None:
    def fail(question: Message) -> Message:
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "boom"), reply_to=question)

    found = round_of(FakeSuperLink(answers(node_2=fail), withheld={LIAR: 0}))
    assert found[LIAR].error.reason == "boom" and not found[1].has_error()


def test_a_reply_that_is_another_inside_is_refused() -> None:
    def swap(question: Message) -> Message:
        reply = honest(question, LIAR)
        reply.metadata.__dict__["_reply_to_message_id"] = "0" * 64
        return reply

    link = FakeSuperLink(answers(node_2=swap))
    deliver = link._deliver

    def outside(root: str) -> None:
        deliver(root)
        link.replies[root][0].metadata.reply_to_message_id = root

    link._deliver = outside  # type: ignore[method-assign]
    found = round_of(link)
    assert "answers another message" in reason(found[LIAR]) and not found[1].has_error()


@pytest.mark.parametrize("status", [500, 503])
def test_a_superlink_that_is_too_busy_is_asked_again(status: int) -> None:
    """A database that is locked is no fault of the node whose reply is asked for."""
    found = round_of(FakeSuperLink(answers(), status={LIAR: [status, status]}), seconds=20.0)
    assert sorted(found) == [1, 2, 3] and not any(reply.has_error() for reply in found.values())
    assert sorted(round_of(FakeSuperLink(answers(), status={LIAR: [status] * 99}))) == [1, 3]


def test_a_run_that_was_stopped_ends() -> None:
    with pytest.raises(RunNotRunningException):
        round_of(FakeSuperLink(answers(), status={LIAR: [403]}))


def test_a_superlink_out_of_reach_is_waited_for() -> None:
    link = FakeSuperLink(answers())
    handle: Callable[[httpx.Request], httpx.Response] = link._handle
    failures = iter([True, True, False])

    def falter(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("pull-messages") and next(failures, False):
            raise httpx.ConnectError("refused")
        return handle(request)

    link._handle = falter  # type: ignore[method-assign]
    assert sorted(round_of(link, seconds=20.0)) == [1, 2, 3]


def test_what_is_given_up_leaves_the_store() -> None:
    link = FakeSuperLink(answers(), withheld={LIAR: 1})
    grid = CarefulGrid(link.grid())
    names = grid.push_messages([ask(MessageType.TRAIN, LIAR, Ticket.issue(1, LIAR), 60.0, WEIGHTS)])
    envelope = link.replies[names[0]][0]
    assert grid.pull_messages(names) == []
    grid._asked[names[0]].pull.discard()  # type: ignore[union-attr]
    assert link.confirmed == [envelope.metadata.message_id]


@pytest.mark.parametrize("parts", [1, 7, 1000])
def test_fields_are_those_of_protobuf_whatever_the_parts(parts: int) -> None:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    from flwr.proto.runtime_pb2 import PullAppMessagesResponse

    envelopes = [
        message_to_proto(Message(RecordDict({"x": ConfigRecord({"x": b"0" * size})}), 1, "train"))
        for size in (0, 500, 3)
    ]
    answer = PullAppMessagesResponse(messages_list=envelopes).SerializeToString()
    stream = [answer[start : start + parts] for start in range(0, len(answer), parts)]
    found = list(fields(iter(stream), 400))
    assert found == [(1, envelopes[0].SerializeToString()), (1, None), (1, envelopes[2].SerializeToString())]
    with pytest.raises(ValueError, match="ends in the middle"):
        list(fields(iter([answer[:-1]]), 400))
    with pytest.raises(ValueError, match="ends in the middle"):
        list(fields(iter([answer[:-1]]), 1))


def test_an_honest_reply_is_within_its_size() -> None:
    question = ask(MessageType.TRAIN, 1, Ticket.issue(1, 1), 60.0, {"ä" * 300: torch.zeros(2000, 2000)} | WEIGHTS)
    size = Size.of_reply(question)
    assert size.objects == 4 + 4 + 7 and 16_000_000 < size.data < 17_000_000 and size.heads < 30_000

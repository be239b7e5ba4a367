"""Flower's grid with care: one bad reply, late ones, none at all, pulls that never end, and a SuperLink that cannot
be reached."""

import pytest

pytest.importorskip("flwr", reason="the extra fedceo[flower] is not installed")

import threading
from collections.abc import Iterable
from typing import Any

import httpx
from flwr.app import Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedceo.deploy.grid import CarefulGrid
from tests.support.flower_grid import LocalGrid

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


NEVER = threading.Event()
"""What a pull that does not come to its end waits for."""

Answers = dict[int, int | Exception | threading.Event | None]


class Postbox(LocalGrid):
    """A grid with each node's answer after some number of polls, an exception or an event that is waited for instead
    of it, or no answer ever."""

    def __init__(self, answers: Answers) -> None:
        super().__init__({})
        self.answers, self.looks, self.questions = answers, dict.fromkeys(answers, 0), dict[str, Message]()

    def push_messages(self, messages: Iterable[Message]) -> list[Any]:
        names = []
        for message in messages:
            name = f"to {message.metadata.dst_node_id}" if message.metadata.dst_node_id in self.answers else None
            if name:
                message.metadata.__dict__["_message_id"] = name
                self.questions[name] = message
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = []
        for name in message_ids:
            node = self.questions[name].metadata.dst_node_id
            answer = self.answers[node]
            self.looks[node] += 1
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, threading.Event):
                answer.wait()
                continue
            if answer is not None and self.looks[node] > answer:
                found.append(Message(RecordDict(), reply_to=self.questions[name]))
        return found


def ask(answers: Answers, nodes: Iterable[int] | None = None, timeout: float = 0.5) -> dict[int, bool]:
    """Node -> whether its reply is an error, for all replies that came."""
    messages = [Message(RecordDict(), node, MessageType.TRAIN) for node in nodes or answers]
    replies = CarefulGrid(Postbox(answers)).send_and_receive(messages, timeout=timeout)
    return {int(reply.metadata.reply_to_message_id.split()[1]): reply.has_error() for reply in replies}


def test_an_unreadable_reply_is_its_senders_error_and_nobody_elses() -> None:
    assert ask({1: 0, 2: ValueError("nonsense"), 3: KeyError("no such type"), 4: 0}) == {
        1: False,
        2: True,
        3: True,
        4: False,
    }


def test_who_is_late_is_waited_for_and_who_is_silent_is_not_for_ever() -> None:
    assert ask({1: 0, 2: 2, 3: None}) == {1: False, 2: False}


def test_a_pull_that_does_not_end_keeps_nobody_waiting_and_is_given_up() -> None:
    assert ask({1: 0, 2: NEVER, 3: 2, 4: NEVER}, timeout=3.0) == {1: False, 3: False}


def test_a_pull_that_was_given_up_is_in_nobodys_way_in_the_next_round() -> None:
    late = threading.Event()
    answers: Answers = {1: 0, 2: late}
    box = Postbox(answers)
    grid = CarefulGrid(box)

    def replies() -> list[int]:
        messages = [Message(RecordDict(), node, MessageType.TRAIN) for node in answers]
        found = grid.send_and_receive(messages, timeout=0.1)
        return [int(reply.metadata.reply_to_message_id.split()[1]) for reply in found]

    assert replies() == [1]
    answers[2] = 0
    late.set()
    assert sorted(replies()) == [1, 2]
    assert not grid._asked and not grid._looking and not grid._found


def test_a_message_that_could_not_be_sent_is_not_waited_for() -> None:
    assert ask({1: 0}, nodes=[1, 9]) == {1: False}


def test_a_superlink_that_cannot_be_reached_is_nobodys_lie() -> None:
    with pytest.raises(httpx.ConnectError):
        ask({1: httpx.ConnectError("refused")})

"""Threads that train clients: how a cohort is cut, and that it does not show."""

import threading
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedceo.models.mlp import MLP
from fedceo.training.batched.trainer import BatchedTrainer, cut
from fedceo.training.loop import LoopTrainer
from fedceo.training.threads import FEW, threads_for
from fedceo.training.work import RecordPrivacy, Work
from tests.support.small_federation import SmallConv
from tests.support.trainers import RECORD, Normed, context, difference, models, starts


@given(st.integers(1, 200), st.integers(1, 50))
def test_a_cohort_is_cut_into_few_equal_parts(count: int, most: int) -> None:
    parts = cut(range(count), most)
    assert [place for part in parts for place in part] == list(range(count))
    sizes = [len(part) for part in parts]
    assert max(sizes) <= most and len(parts) == -(-count // most) and set(sizes[:-1]) <= {sizes[0]}


def test_threads_are_for_steps_that_are_worth_one() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for model, clients, batch, expected in (
            (MLP((1, 4, 4), 3), 10, 64, 1),
            (MLP((1, 4, 4), 3), 1, 64, None),
            (nn.Sequential(nn.Flatten(), nn.Linear(16, 2000), nn.ReLU(), nn.Linear(2000, 3)), 100, 64, 3),
            (SmallConv(), 2, 1, 3),
            (Normed(), 2, 64, None),
        ):
            assert BatchedTrainer(context(model))._workers(clients, Work(1, batch, 0.1)) == expected
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("record", [None, RECORD], ids=["plain", "record"])
def test_threads_change_nothing_and_are_given_back(record: RecordPrivacy | None) -> None:
    model = models()["conv"]
    begin, work, before = starts(model, 4), Work(2, 4, 0.1, record=record), torch.get_num_threads()
    trained = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            trained.append(BatchedTrainer(context(model)).train(begin, [0, 1, 2, 3], 1, work))
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
    assert difference(trained[0].weights, trained[1].weights) < 1e-6
    assert torch.allclose(trained[0].losses, trained[1].losses)


class Witness(nn.Module):
    """Writes down in which threads it runs and how many threads a product may take there."""

    seen: ClassVar[set[tuple[int, int]]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        Witness.seen.add((threading.get_ident(), torch.get_num_threads()))
        return self.out(x.flatten(1))


@pytest.mark.parametrize("threads", [1, 3])
def test_the_loop_takes_no_more_threads_than_torch_was_given(threads: int) -> None:
    model, before = Witness(), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        trainer = LoopTrainer(context(model))
        trainer.train(starts(model, 4), [0, 1, 2, 3], 1, Work(1, 4, 0.1))  # asks the model what it draws, too
        Witness.seen.clear()
        trainer.train(starts(model, 4), [0, 1, 2, 3], 1, Work(1, 4, 0.1))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    here = threading.get_ident()
    assert {inside for _, inside in Witness.seen} == {1}
    assert len(Witness.seen) <= threads and (here in {thread for thread, _ in Witness.seen}) == (threads == 1)


def test_few_numbers_take_one_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for numbers, expected in ((FEW, 1), (FEW + 1, 3)):
            with threads_for(numbers):
                assert torch.get_num_threads() == expected
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)

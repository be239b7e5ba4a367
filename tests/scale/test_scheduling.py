"""Tasks without Ray: every client is in one task, and every task has one result, whichever workers die."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedceo.data.assignment import Assignment, Resampled
from fedceo.scale.scheduling import LEAST_CLIENTS, MOST_TRIES, TURNS, TaskQueue, TooManyTriesError, cut
from fedceo.scale.worker import Worker, WorkerSetup
from fedceo.training.context import TrainingContext
from fedceo.training.engine import make_trainer
from fedceo.training.schedule import Schedule
from fedceo.training.work import RecordPrivacy, Work
from tests.support.small_federation import SmallConv, federation


@given(st.integers(1, 3000), st.integers(1, 200))
def test_ranges_are_contiguous_and_hold_everybody_once(clients: int, workers: int) -> None:
    ranges = cut(clients, workers)
    assert [k for part in ranges for k in part] == list(range(clients))
    sizes = [len(part) for part in ranges]
    assert len(set(sizes[:-1])) <= 1 and 0 < sizes[-1] <= sizes[0]
    assert len(ranges) <= TURNS * workers
    assert len(ranges) <= workers or sizes[0] >= LEAST_CLIENTS


def test_a_small_cohort_has_a_task_a_worker_and_a_large_one_has_turns() -> None:
    assert cut(10, 2) == [range(0, 5), range(5, 10)], "the halves that two threads of one machine would take"
    assert cut(3, 4) == [range(0, 1), range(1, 2), range(2, 3)]
    assert len(cut(30, 2)) == 2, "three tasks of ten would keep one worker waiting"
    assert len(cut(1000, 2)) == 2 * TURNS


@given(st.integers(1, 12), st.integers(1, 4), st.data())
def test_every_task_is_brought_back_once_whoever_dies(tasks: int, workers: int, data: st.DataObject) -> None:
    """Workers that die at random are replaced by new ones; a model of the queue in two sets."""
    queue: TaskQueue[int] = TaskQueue(tasks)
    idle, next_worker = list(range(workers)), workers
    held: dict[int, int] = {}
    done: list[int] = []
    tries = [0] * tasks
    while not queue.is_done:
        while idle and (task := queue.take(idle[0])) is not None:
            assert task not in held.values() and task not in done
            held[idle.pop(0)] = task
            tries[task] += 1
        worker = data.draw(st.sampled_from(sorted(held)))
        task = held.pop(worker)
        if tries[task] < MOST_TRIES and data.draw(st.booleans()):
            assert queue.lose(worker) == task
            idle.append(next_worker)
            next_worker += 1
        else:
            assert queue.finish(worker) == task
            done.append(task)
            idle.append(worker)
    assert sorted(done) == list(range(tasks))


def test_a_task_that_ends_every_worker_is_given_up() -> None:
    queue: TaskQueue[int] = TaskQueue(2)
    for worker in range(MOST_TRIES - 1):
        assert queue.take(worker) == 0
        assert queue.lose(worker) == 0
    assert queue.take(99) == 0 and queue.take(100) == 1
    assert queue.lose(7) is None, "an idle worker takes nothing with it"
    with pytest.raises(TooManyTriesError) as error:
        queue.lose(99)
    assert error.value.task == 0


@pytest.mark.parametrize("assignment", ["list", "stored", "resampled"])
@pytest.mark.parametrize("record", [None, RecordPrivacy(0.5, 1.0)], ids=["plain", "record"])
@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_worker_trains_a_task_as_the_machine_itself_would(
    engine: str, record: RecordPrivacy | None, assignment: str
) -> None:
    """The setup goes through pickle, as it does on its way; one parameter is common, the others differ by client."""
    data = federation()
    if assignment != "list":
        held = Assignment(data.train) if assignment == "stored" else Resampled(torch.arange(40), 4, 9, seed=2)
        object.__setattr__(data, "train", held)
    torch.manual_seed(0)
    model = SmallConv()
    context = TrainingContext(model, data, Schedule(5), torch.device("cpu"), torch.float32)
    work = Work(2, 4, 0.1, momentum=0.5, record=record)
    starts = {name: w.detach() + 0.01 * torch.randn(3, *w.shape) for name, w in model.named_parameters()}
    starts["conv.bias"] = starts["conv.bias"][:1].expand(3, -1)
    clients = [0, 2, 3]
    whole = make_trainer(context, engine).train(starts, clients, 2, work)

    worker = Worker()
    worker.prepare(pickle.loads(pickle.dumps(WorkerSetup.of(context, engine, model))))
    common = {"conv.bias": starts["conv.bias"][0].numpy()}
    for part in cut(3, 2):
        personal = {name: w[part.start : part.stop].numpy() for name, w in starts.items() if name not in common}
        weights, losses = worker.train(common, personal, [clients[k] for k in part], 2, work)
        assert list(weights) == list(starts)
        for name, w in weights.items():
            assert torch.allclose(torch.from_numpy(w), whole.weights[name][part.start : part.stop], atol=1e-6)
        assert torch.allclose(torch.from_numpy(losses), whole.losses[part.start : part.stop], atol=1e-6)

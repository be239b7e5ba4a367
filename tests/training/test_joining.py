"""Cohorts of several runs as one: each ends where it ends alone, and what does not fit together is kept apart."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedceo.models import build_model, parameters_of
from fedceo.training.batched import cohort, joining
from fedceo.training.batched.cohort import Call
from fedceo.training.batched.joining import Seat, find_seat, train_all
from fedceo.training.batched.trainer import BatchedTrainer
from fedceo.training.context import TrainingContext
from fedceo.training.loop import LoopTrainer
from fedceo.training.schedule import Schedule
from fedceo.training.work import RecordPrivacy, Trainer, Work
from tests.support.small_federation import SIZES, SmallConv, federation

MODELS: dict[str, Callable[[], nn.Module]] = {
    "conv": SmallConv,
    "masked": lambda: build_model("mlp", (1, 4, 4), 3, 0),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3)),
}


class Normed(nn.Module):
    """No chain of known layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.GroupNorm(1, 1), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(x).flatten(1))


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Join on a CPU too, where a joined run may round differently."""
    monkeypatch.setattr(joining, "DEVICES", {"cpu"})


def context(seed: int, model: nn.Module | None = None, dtype: torch.dtype = torch.float64) -> TrainingContext:
    """A run of its own: the records of all others, dealt to its clients by its seed."""
    data = federation()
    order = torch.randperm(sum(SIZES), generator=torch.Generator().manual_seed(seed))
    dealt = replace(data, train=list(order.split(list(SIZES))))
    return TrainingContext((model or SmallConv()).to(dtype), dealt, Schedule(seed), torch.device("cpu"), dtype)


def call(here: TrainingContext, clients: list[int], round_: int, work: Work) -> Call:
    torch.manual_seed(round_)
    weights = parameters_of(here.model).items()
    starts = {name: w + 0.1 * torch.randn(len(clients), *w.shape, dtype=w.dtype) for name, w in weights}
    return Call(here, starts, clients, round_, work)


def alone(each: Call) -> dict[str, Tensor]:
    """What the oracle makes of a call."""
    return LoopTrainer(each.context).train(each.starts, each.clients, each.round_, each.work).weights


WORKS = {
    "plain": (Work(2, 4, 0.1), Work(1, 5, 0.3), Work(3, 30, 0.02, steps=2)),
    "one rate": (Work(2, 4, 0.1), Work(1, 5, 0.1), Work(3, 30, 0.1, phase=1)),
    "record": (
        Work(2, 4, 0.1, record=RecordPrivacy(0.5, 0.3)),
        Work(1, 5, 0.3, record=RecordPrivacy(0.05, 2.0)),
        Work(1, 9, 0.02, record=RecordPrivacy(3.0, 0.0)),
    ),
    "all at once": tuple(
        Work(2, 4, rate, 0.5, RecordPrivacy(clip, 0.3), proximal=0.2, outside=0.1, outside_radius=0.01, radius=0.5)
        for rate, clip in ((0.1, 0.5), (0.2, 0.1), (0.05, 2.0))
    ),
}


@pytest.mark.parametrize("works", WORKS.values(), ids=list(WORKS))
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("filling", [0, 3])
def test_joined_runs_end_where_each_ends_alone(
    model: str, works: tuple[Work, ...], filling: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other seeds, partitions, cohorts, rounds, rates, clips and noises, lengths and batches in one cohort.

    And with rows of nobody, as a GPU adds them, which has noise for these too.
    """
    if works[0].record is None:
        monkeypatch.setattr(cohort, "padded", lambda clients, context: clients + filling)
    cohorts = (([0, 1, 2, 3], 1), ([2], 7), ([1, 3], 4))
    calls = [
        call(context(seed, MODELS[model]()), clients, round_, work)
        for seed, ((clients, round_), work) in enumerate(zip(cohorts, works, strict=True))
    ]
    trainer = BatchedTrainer(calls[0].context)
    trained = trainer.train_together(calls)
    parts = BatchedTrainer(calls[0].context, most_bytes=1).train_together(calls)
    for each, found, other in zip(calls, trained, parts, strict=True):
        for name, w in alone(each).items():
            assert torch.allclose(found.weights[name], w, atol=1e-9), name
            assert torch.allclose(other.weights[name], w, atol=1e-9), name
            assert not torch.equal(w, each.starts[name])
        assert found.losses.shape == (len(each.clients),)


def test_runs_of_one_data_set_share_their_records(everywhere: None) -> None:
    first, second = (BatchedTrainer(context(seed)) for seed in (0, 1))
    seat = find_seat(first, first.context, [])
    assert seat.trainer is first and seat.context is first.context
    beside = find_seat(second, second.context, [seat])
    assert beside.trainer is first and beside.context.inputs is first.context.inputs
    assert beside.context.schedule == Schedule(1) and beside.context.federation is second.context.federation


@pytest.mark.parametrize("randomness", ["seeded", "system"])
def test_runs_of_one_seed_on_one_federation_draw_their_batches_once(everywhere: None, randomness: str) -> None:
    """Unless the operating system draws them, which no two runs may share."""
    first = context(0)
    first = replace(first, schedule=Schedule(0, randomness))
    alike = replace(first, schedule=Schedule(0, randomness, noise_key="5"), planned={})
    other = replace(first, schedule=Schedule(1, randomness), planned={})
    seats: list[Seat] = []
    for each in (first, alike, other):
        seats.append(find_seat(BatchedTrainer(each), each, seats))
    plans = [seat.context.batches([0, 2], 3, Work(2, 4, 0.1)) for seat in seats]
    assert (plans[0] is plans[1]) == (randomness == "seeded")
    assert not torch.equal(plans[0][0], plans[2][0])
    again = seats[0].context.batches([0, 2], 4, Work(2, 4, 0.1))
    assert not torch.equal(plans[0][0], again[0]), "another round has others"
    assert seats[0].context.batches([2], 3, Work(2, 4, 0.1))[0].shape == plans[0][1].shape
    works = [Work(2, 4, 0.1), Work(2, 5, 0.1), Work(1, 4, 0.1), Work(2, 4, 0.1, steps=1), Work(2, 4, 0.1, phase=1)]
    works.append(Work(2, 4, 0.1, record=RecordPrivacy(1.0, 1.0)))
    for work in works:
        found, fresh = seats[0].context.batches([0, 2], 3, work), replace(first, planned={}).batches([0, 2], 3, work)
        same = all(torch.equal(a, b) for a, b in zip(found, fresh, strict=True))
        assert same or randomness == "system"


def test_rows_that_share_their_batches_are_filled_as_if_each_had_its_own() -> None:
    tensors = [torch.arange(6).view(2, 3), torch.arange(4).view(4, 1)]
    shared = [tensors[0], tensors[1], tensors[0]]
    assert torch.equal(cohort.pad(shared, -1, (4, 2), 5), cohort.pad([t.clone() for t in shared], -1, (4, 2), 5))


@pytest.mark.parametrize("differs", ["records", "labels", "scale", "precision", "layers", "shapes"])
def test_runs_that_differ_sit_apart(differs: str, everywhere: None) -> None:
    here = context(1)
    data = here.federation
    others = {
        "records": replace(here, federation=replace(data, x=data.x + 1)),
        "labels": replace(here, federation=replace(data, y=2 - data.y)),
        "scale": replace(here, federation=replace(data, std=(2.0,))),
        "precision": context(1, dtype=torch.float32),
        "layers": context(1, nn.Sequential(nn.Flatten(), nn.Linear(16, 3))),
        "shapes": context(1, SmallConv(classes=4)),
    }
    first, other = BatchedTrainer(context(0)), BatchedTrainer(others[differs])
    seat = find_seat(other, other.context, [Seat(first, first.context)])
    assert seat == Seat(other, other.context)


def test_who_cannot_be_joined_sits_alone(everywhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop, and a model that may hold more than its parameters; on a CPU, where bits come first, everybody."""

    def is_alone(make: Callable[[], LoopTrainer | BatchedTrainer]) -> bool:
        first, second = make(), make()
        return find_seat(second, second.context, [Seat(first, first.context)]) == Seat(second, second.context)

    assert is_alone(lambda: LoopTrainer(context(0)))
    assert is_alone(lambda: BatchedTrainer(context(0, Normed())))
    assert not is_alone(lambda: BatchedTrainer(context(0)))
    monkeypatch.undo()
    assert is_alone(lambda: BatchedTrainer(context(0)))


def test_calls_are_sorted_by_kind_and_answered_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error reaches the calls that it belongs to and no others."""
    record = RecordPrivacy(0.5, 0.3)
    works = [Work(1, 4, 0.1), Work(1, 4, 0.1, record=record), Work(1, 4, 0.2), Work(1, 4, 0.1, momentum=0.5)]
    first, apart, loop = BatchedTrainer(context(0)), BatchedTrainer(context(9)), context(6)
    calls: list[tuple[Trainer, Call]] = [(first, call(context(k), [0, 1], k + 1, work)) for k, work in enumerate(works)]
    calls += [(apart, call(context(5), [2], 1, works[0])), (LoopTrainer(loop), call(loop, [3], 1, works[0]))]
    together: list[list[float]] = []
    train = BatchedTrainer.train_together

    def watched(self: BatchedTrainer, calls: list[Call]) -> list[object]:
        together.append([each.work.learning_rate for each in calls])
        if calls[0].work.record:
            raise RuntimeError("out of memory")
        return list(train(self, calls))

    monkeypatch.setattr(BatchedTrainer, "train_together", watched)
    answers = train_all(calls)
    assert sorted(together) == [[0.1], [0.1], [0.1], [0.1, 0.2]]
    for (_, each), answer in zip(calls, answers, strict=True):
        if each.work.record:
            assert isinstance(answer, RuntimeError)
            continue
        assert not isinstance(answer, Exception)
        for name, w in alone(each).items():
            assert torch.allclose(answer.weights[name], w, atol=1e-9)

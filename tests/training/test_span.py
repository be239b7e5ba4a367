"""Steps of a first layer in the span of its records are those of the loop, and are taken where they pay."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedceo.experiment.task_table import Task as TaskSettings
from fedceo.tasks import make_task
from fedceo.training.batched.span import Span
from fedceo.training.batched.tracing import read_chain
from fedceo.training.batched.trainer import BatchedTrainer
from fedceo.training.loop import LoopTrainer
from fedceo.training.work import RecordPrivacy, Work
from tests.support.linear_models import FEATURES, Deep, context, data, linear, watched
from tests.support.small_federation import SIZES
from tests.support.trainers import difference, starts


def spans(patch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of clients that are trained in the span from now on, call by call."""
    return watched(patch, Span, "descend")


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 24), min_size=1, max_size=5),
    epochs=st.integers(2, 4),
    batch=st.integers(1, 30),
    model=st.sampled_from([linear(), linear(bias=False), Deep(), Deep(bias=False)]),
    rate=st.floats(0.01, 0.3),  # at larger ones weights grow to 1e5 here, and their rounding errors with them
)
def test_the_span_gives_what_the_loop_gives(
    sizes: list[int], epochs: int, batch: int, model: nn.Module, rate: float
) -> None:
    """Clients of any sizes, who begin at different models; batches that leave a rest, or hold more than there is."""
    here = context(model, data(tuple(sizes)))
    begin, work = starts(here.model, len(sizes)), Work(epochs, batch, rate)
    trainer = BatchedTrainer(here)
    with pytest.MonkeyPatch.context() as patch:
        seen = spans(patch)
        found = trainer.train(begin, range(len(sizes)), 2, work)
    assert sum(seen) == len(sizes), "all were trained in the span"
    wanted = LoopTrainer(here).train(begin, range(len(sizes)), 2, work)
    largest = max(1.0, *(float(w.abs().max()) for w in wanted.weights.values()))
    assert difference(found.weights, wanted.weights) <= 1e-10 * largest
    assert torch.allclose(found.losses, wanted.losses, atol=1e-10)
    again = trainer.train(begin, range(len(sizes)), 2, work)
    assert difference(again.weights, found.weights) == 0, "a Gram matrix that is kept is the one that was made"


@pytest.mark.parametrize("layers", [("first",), ("second",), ("last",), ("first", "last")])
def test_layers_that_stay_are_not_moved(layers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """As personal heads are trained, and shared layers under them."""
    here = context(Deep(), data())
    names = frozenset(name for name, _ in here.model.named_parameters() if name.split(".")[0] in layers)
    begin, work, seen = starts(here.model, 4), Work(3, 4, 0.3, only=names), spans(monkeypatch)
    found, wanted = (trainer(here).train(begin, range(4), 1, work) for trainer in (BatchedTrainer, LoopTrainer))
    assert seen
    assert difference(found.weights, wanted.weights) <= 1e-10
    assert torch.allclose(found.losses, wanted.losses, atol=1e-10)
    assert all(torch.equal(w, begin[name]) for name, w in found.weights.items() if name not in names)


def test_a_client_that_holds_a_record_twice_takes_both_steps() -> None:
    some = data((6, 9))
    doubled = replace(some, train=[torch.tensor([0, 1, 1, 2, 1]), some.train[1]])
    here = context(linear(), doubled)
    begin, work = starts(here.model, 2), Work(3, 3, 0.3)
    found, wanted = (trainer(here).train(begin, [0, 1], 1, work) for trainer in (BatchedTrainer, LoopTrainer))
    assert difference(found.weights, wanted.weights) <= 1e-10


def test_targets_of_another_task_are_learnt_in_the_span(monkeypatch: pytest.MonkeyPatch) -> None:
    some = data()
    targets = torch.stack([some.y == 0, some.y == 1, some.y == 2], 1).float()
    task = make_task(TaskSettings(name="multi-label"))
    here = replace(context(linear(), replace(some, y=targets)), task=task)
    begin, work, seen = starts(here.model, 4), Work(3, 4, 0.3), spans(monkeypatch)
    found, wanted = (trainer(here).train(begin, range(4), 1, work) for trainer in (BatchedTrainer, LoopTrainer))
    assert seen
    assert difference(found.weights, wanted.weights) <= 1e-10


def test_float32_stays_near_float64() -> None:
    """Thirty epochs: errors of the Gram matrix do not grow with the steps."""
    work, weights = Work(30, 4, 0.2), {}
    for dtype in (torch.float32, torch.float64):
        here = context(linear(), data(), dtype)
        begin = {name: w.to(dtype) for name, w in starts(linear(), 4).items()}
        weights[dtype] = BatchedTrainer(here).train(begin, range(4), 1, work).weights
    assert difference({n: w.double() for n, w in weights[torch.float32].items()}, weights[torch.float64]) <= 1e-5


@pytest.mark.parametrize(
    ("work", "taken"),
    [
        (Work(2, 4, 0.1), True),
        (Work(1, 4, 0.1), False),
        (Work(9, 4, 0.1, steps=3), False),
        (Work(9, 4, 0.1, steps=30), True),
        (Work(9, 4, 0.1, momentum=0.5), False),
        (Work(9, 4, 0.1, record=RecordPrivacy(1.0, 1.0)), False),
        (Work(9, 4, 0.1, proximal=0.5), False),
    ],
)
def test_only_plain_steps_over_the_records_more_than_once_go_by_the_span(
    work: Work, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, seen = context(linear(), data()), spans(monkeypatch)
    BatchedTrainer(here).train(starts(here.model, 4), range(4), 1, work)
    assert bool(seen) == taken


def test_a_convolution_first_or_clients_of_many_records_have_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    convolves = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)).double()
    for model, some, wanted in (
        (linear(), data(), True),
        (Deep(), data(), True),
        (convolves, data(), False),
        (linear(), data((FEATURES + 1, 3)), False),
    ):
        here = context(model, some)
        assert (Span.of(read_chain(model, some.shape), here) is not None) == wanted
    monkeypatch.setattr("fedceo.training.batched.span.MOST_GRAM_BYTES", 8 * sum(n * n for n in SIZES) - 1)
    assert Span.of(read_chain(linear(), data().shape), context(linear(), data())) is None


def test_a_cohort_that_is_cut_gives_every_client_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    here = context(linear(), data())
    begin, work = starts(here.model, 4), Work(3, 4, 0.3)
    whole, seen = BatchedTrainer(here).train(begin, range(4), 1, work), spans(monkeypatch)
    cut = BatchedTrainer(here, most_bytes=1).train(begin, range(4), 1, work)
    assert seen == [1, 1, 1, 1]
    assert difference(whole.weights, cut.weights) <= 1e-12


def test_records_that_were_written_to_have_another_span(monkeypatch: pytest.MonkeyPatch) -> None:
    here, work, seen = context(linear(), data()), Work(3, 4, 0.3), spans(monkeypatch)
    begin, trainer = starts(here.model, 4), BatchedTrainer(here)
    trainer.train(begin, range(4), 1, work)
    here.federation.x.copy_(here.federation.x.flip(0))
    found, wanted = trainer.train(begin, range(4), 1, work), LoopTrainer(here).train(begin, range(4), 1, work)
    assert seen and difference(found.weights, wanted.weights) <= 1e-10

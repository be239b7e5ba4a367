"""What steps in coordinates of records must leave out: parts of layers, records without a length, others' noise."""

from dataclasses import replace

import pytest
import torch

from fedceo.training.batched.rotation import Rotation
from fedceo.training.batched.trainer import BatchedTrainer
from fedceo.training.loop import LoopTrainer
from fedceo.training.work import RecordPrivacy, Work
from tests.support.linear_models import Deep, context, data, linear, watched
from tests.support.trainers import difference, starts

SIZES = (9, 4, 12, 1)
QUIET, LOUD = RecordPrivacy(0.5, 0.0), RecordPrivacy(0.5, 2.0)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of clients that are trained in coordinates of their records, call by call."""
    return watched(monkeypatch, Rotation, "turn")


@pytest.mark.parametrize("kind", [QUIET, None])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize(
    "names", [{"first.weight"}, {"first.bias"}, {"first.bias", "last.weight", "last.bias"}, {"second.weight"}]
)
def test_parts_of_layers_that_stay_are_not_moved(names: set[str], momentum: float, kind: RecordPrivacy | None) -> None:
    """Steps in coordinates of records, on the way back and in the span know whole layers alone."""
    here, begin = context(Deep(), data(SIZES)), starts(Deep(), 4)
    work = Work(3, 4, 0.3, momentum=momentum, record=kind, only=frozenset(names))
    found, wanted = (trainer(here).train(begin, range(4), 1, work) for trainer in (BatchedTrainer, LoopTrainer))
    assert difference(found.weights, wanted.weights) <= 1e-10
    assert all(torch.equal(w, begin[name]) for name, w in found.weights.items() if name not in names)


def test_noise_leaves_parts_of_layers_that_stay_where_they_were() -> None:
    """Noise across the records alone would show who has them."""
    here, begin = context(Deep(), data(SIZES)), starts(Deep(), 4)
    work = Work(3, 4, 0.3, record=LOUD, only=frozenset({"first.bias", "last.weight", "last.bias"}))
    found = BatchedTrainer(here).train(begin, range(4), 1, work).weights
    assert torch.equal(found["first.weight"], begin["first.weight"])
    assert not torch.equal(found["first.bias"], begin["first.bias"])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38, 1e30])
def test_a_record_without_a_length_counts_for_nothing(value: float, seen: list[int]) -> None:
    """As on whole weights: its gradient is no number, or far beyond the clip, and the others' are taken as ever."""
    some = data(SIZES)
    some = replace(some, x=some.x.clone())
    some.x[some.train[2][1]] = value
    here = context(Deep().float(), some, torch.float32)
    begin, work = starts(here.model, 4), Work(3, 4, 0.3, record=QUIET)
    trainer = BatchedTrainer(here)
    found = trainer.train(begin, range(4), 1, work)
    trainer.turned = False
    wanted = trainer.train(begin, range(4), 1, work)
    assert len(seen) == 1 and all(bool(w.isfinite().all()) for w in found.weights.values())
    assert difference(found.weights, wanted.weights) <= 1e-5


def test_its_noise_is_no_engine_s_noise_in_other_coordinates() -> None:
    """The sum of what two models moved would otherwise lie where the records do."""
    here, work = context(linear(bias=False), data((4,))), Work(2, 4, 0.3, record=LOUD)
    begin = starts(here.model, 1)
    trainers = (BatchedTrainer(here), LoopTrainer(here))
    moves = [(each.train(begin, [0], 1, work).weights["1.weight"] - begin["1.weight"])[0] for each in trainers]
    x = torch.linalg.qr(here.inputs_of(here.federation.train[0]).flatten(1).T)[0]
    across = [move - move @ x @ x.T for move in moves]
    both = torch.stack([move.flatten() for move in across])
    assert abs(float(torch.corrcoef(both)[0, 1])) < 0.5, "60 numbers: 4 standard deviations"

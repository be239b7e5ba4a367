"""Terms of local training: against arithmetic by hand, their one home, and the buffers that steps work on."""

from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from fedceo.models import parameters_of
from fedceo.training import terms
from fedceo.training.batched.cohort import Cohort, Share
from fedceo.training.batched.step import take_step
from fedceo.training.batched.trainer import BatchedTrainer
from fedceo.training.context import TrainingContext
from fedceo.training.loop import LoopTrainer
from fedceo.training.schedule import Schedule
from fedceo.training.terms import Term
from fedceo.training.work import BARE_FIELDS, PLAIN_FIELDS, RecordPrivacy, Work
from tests.support.small_federation import SIZES, SmallConv, federation

PLAIN = Work(2, 4, 0.1)
OTHERWISE: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 5,
    "learning_rate": 0.2,
    "momentum": 0.5,
    "record": RecordPrivacy(1.0, 1.0),
    "proximal": 0.1,
    "outside": 0.1,
    "outside_radius": 0.1,
    "radius": 0.0,
    "ascent": 0.1,
    "only": frozenset(),
    "steps": 1,
    "phase": 1,
    "optimizer": "adam",
    "weight_decay": 0.1,
    "anchor": {},
    "shift": {},
    "worth": 3.0,
}
"""For each field of Work a value that is not its default, though it may be as false as that."""


def context(dtype: torch.dtype = torch.float64) -> TrainingContext:
    torch.manual_seed(0)
    return TrainingContext(SmallConv().to(dtype), federation(), Schedule(3), torch.device("cpu"), dtype)


def starts(here: TrainingContext) -> dict[str, Tensor]:
    return {name: w.expand(len(SIZES), *w.shape).clone() for name, w in parameters_of(here.model).items()}


def cohort_of(here: TrainingContext, work: Work) -> Cohort:
    batches = here.batches(range(len(SIZES)), 1, work)
    return Cohort.of([Share(work, starts(here), batches, [2.0] * len(SIZES))], here)


def test_the_fused_steps_take_no_field_that_they_do_not_know() -> None:
    """Each field of Work alone: the kernel of a GPU and the step without gradients know some, and no others."""
    assert OTHERWISE.keys() == {field.name for field in fields(Work)}, "a new field needs a value here, nothing more"
    for name, value in OTHERWISE.items():
        work = replace(PLAIN, **{name: value})
        assert work != PLAIN, name
        plain = name not in ("outside", "radius", "ascent", "only", "optimizer", "weight_decay", "shift")
        assert work.is_plain == plain, name
        bare = ("epochs", "batch_size", "learning_rate", "outside_radius", "steps", "phase", "worth", "only")
        assert work.is_bare == (name in bare), name
    assert BARE_FIELDS < PLAIN_FIELDS < OTHERWISE.keys()


@dataclass(frozen=True)
class NewWork(Work):
    """The one field that a developer adds to Work for a new term."""

    decay: float = 0.0


def away_from_zero(weights: Tensor, starts: Tensor) -> Tensor:
    return weights


@pytest.mark.parametrize("record", [None, RecordPrivacy(0.5, 0.3)], ids=["plain", "record"])
def test_a_new_term_is_a_field_and_an_entry(record: RecordPrivacy | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weight decay: both trainers know it at once, it does what weight decay does, and no fused step overlooks it."""
    monkeypatch.setattr(terms, "TERMS", (*terms.TERMS, Term("decay", away_from_zero)))
    here, rate, decay = context(), 0.1, 0.7
    without = NewWork(1, 64, rate, record=record, steps=1)
    work = replace(without, decay=decay)
    assert not work.is_plain and not work.is_bare and without.is_plain
    begin = starts(here)
    for trainer in (LoopTrainer(here), BatchedTrainer(here)):
        one, other = (trainer.train(begin, range(len(SIZES)), 1, each).weights for each in (without, work))
        for name, w in begin.items():
            assert torch.allclose(other[name], one[name] - rate * decay * w, atol=1e-12)
    long = replace(work, epochs=3, batch_size=4, steps=None, momentum=0.5, proximal=0.2, radius=0.3)
    loop, batch = (
        kind(here).train(begin, range(len(SIZES)), 1, long).weights for kind in (LoopTrainer, BatchedTrainer)
    )
    assert all(torch.allclose(loop[name], batch[name], atol=1e-9) for name in loop)


@pytest.mark.parametrize("trainer", [LoopTrainer, BatchedTrainer])
def test_pulls_by_hand(trainer: type[LoopTrainer] | type[BatchedTrainer]) -> None:
    """Two full batches; after the first a pull acts on the way gone, the second term only on who is outside."""
    here, rate = context(), 0.1
    begin = starts(here)

    def moved(steps: int, **asked: Any) -> Tensor:
        work = replace(PLAIN, epochs=steps, batch_size=64, learning_rate=rate, **asked)
        after = trainer(here).train(begin, range(len(SIZES)), 1, work).weights
        return torch.cat([(after[name] - w).flatten(1) for name, w in begin.items()], 1)

    first, second = moved(1), moved(2)
    way = first.norm(dim=1)
    radius = float(way.sort().values[1:3].mean())
    outside = (way > radius)[:, None]
    assert outside.any() and not outside.all()
    pulled = moved(2, proximal=0.4, outside=0.9, outside_radius=radius)
    assert torch.allclose(pulled, second - rate * (0.4 + 0.9 * outside) * first, atol=1e-12)


@pytest.mark.parametrize("trainer", [LoopTrainer, BatchedTrainer])
def test_an_anchor_by_hand(trainer: type[LoopTrainer] | type[BatchedTrainer]) -> None:
    """One full batch: with an anchor the first step is pulled already, though nothing has moved from its start."""
    here, rate = context(), 0.1
    begin = starts(here)
    anchor = {name: torch.arange(len(w)).view(-1, *[1] * (w.ndim - 1)) + 0.3 * w for name, w in begin.items()}
    free, pulled = (
        trainer(here).train(begin, range(len(SIZES)), 1, Work(1, 64, rate, proximal=pull, anchor=anchor)).weights
        for pull in (0.0, 0.4)
    )
    for name, w in begin.items():
        assert torch.allclose(pulled[name], free[name] - rate * 0.4 * (w - anchor[name]), atol=1e-12)


@pytest.mark.parametrize("trainer", [LoopTrainer, BatchedTrainer])
def test_a_ball_by_hand(trainer: type[LoopTrainer] | type[BatchedTrainer]) -> None:
    """One full batch: who has gone farther than the radius is put back on the sphere, the others stay."""
    here = context()
    begin = starts(here)

    def moved(radius: float | None) -> Tensor:
        work = replace(PLAIN, epochs=1, batch_size=64, radius=radius)
        after = trainer(here).train(begin, range(len(SIZES)), 1, work).weights
        return torch.cat([(after[name] - w).flatten(1) for name, w in begin.items()], 1)

    free = moved(None)
    way = free.norm(dim=1, keepdim=True)
    radius = float(way.flatten().sort().values[1:3].mean())
    assert torch.allclose(moved(radius), free * (radius / way).clamp_max(1.0), atol=1e-12)


@pytest.mark.parametrize("trainer", [LoopTrainer, BatchedTrainer])
def test_a_shift_is_gone_in_equal_parts_by_clients_with_unequal_steps(
    trainer: type[LoopTrainer] | type[BatchedTrainer],
) -> None:
    """At a rate of nothing but rounding all that moves a client is its shift, whole, however many steps it takes."""
    here = context()
    begin = starts(here)
    shift = {name: torch.arange(w.numel()).view_as(w).to(w) for name, w in begin.items()}
    for momentum in (0.0, 0.9):
        work = Work(2, 4, 1e-30, momentum, shift=shift)
        after = trainer(here).train(begin, range(len(SIZES)), 1, work).weights
        assert all(torch.allclose(after[name], w + shift[name], atol=1e-12) for name, w in begin.items())


@pytest.mark.parametrize("trainer", [LoopTrainer, BatchedTrainer])
def test_a_change_counts_for_as_many_steps_as_it_is_worth(trainer: type[LoopTrainer] | type[BatchedTrainer]) -> None:
    here = context()
    begin = starts(here)
    plain, scaled = (
        trainer(here).train(begin, range(len(SIZES)), 1, replace(PLAIN, worth=worth)).weights for worth in (None, 5.0)
    )
    for k, size in enumerate(SIZES):
        steps = PLAIN.epochs * -(-size // PLAIN.batch_size)
        for name, w in begin.items():
            assert torch.allclose(scaled[name][k] - w[k], 5 / steps * (plain[name][k] - w[k]), atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("proximal", [0.0, 0.3])
def test_the_way_of_steps_has_the_closed_forms_of_the_paper(momentum: float, proximal: float) -> None:
    """Wang et al. 2020, Section 4: |a|_1 of SGD with momentum, and of SGD with a proximal term."""
    steps, rate = 7, 0.2
    found = terms.way_of_steps(Work(1, 1, rate, momentum, proximal=proximal), steps)
    if not proximal:
        wanted = sum((1 - momentum ** (steps - k)) / (1 - momentum) for k in range(steps))
        assert found == pytest.approx(wanted)
    elif not momentum:
        assert found == pytest.approx((1 - (1 - rate * proximal) ** steps) / (rate * proximal))
    else:
        assert 0 < found < terms.way_of_steps(Work(1, 1, rate, momentum), steps)


EVERYTHING = replace(PLAIN, momentum=0.5, record=RecordPrivacy(0.5, 0.3), proximal=0.1, radius=0.05, ascent=0.1)


def test_no_two_buffers_share_memory() -> None:
    for work in (PLAIN, replace(PLAIN, momentum=0.5), EVERYTHING):
        cohort = cohort_of(context(), work)
        buffers = {f.name: t for f in fields(cohort) if isinstance(t := getattr(cohort, f.name), Tensor)}
        for (one, a), (other, b) in combinations(buffers.items(), 2):
            assert a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr(), (one, other)


def test_buffers_that_a_work_does_not_need_are_not_there() -> None:
    bare = cohort_of(context(), PLAIN)
    assert bare.momenta is bare.starts is bare.noised is bare.keys is None
    assert cohort_of(context(), replace(PLAIN, momentum=0.5)).momenta is not None
    for work in (replace(PLAIN, proximal=0.5), replace(PLAIN, outside=0.5), replace(PLAIN, radius=0.0)):
        assert cohort_of(context(), work).starts is not None
    assert cohort_of(context(), replace(PLAIN, ascent=0.5)).noised is None, "under record privacy alone"
    assert cohort_of(context(), EVERYTHING).noised is not None


def test_the_start_stays_while_the_weights_move() -> None:
    cohort = cohort_of(context(), EVERYTHING)
    assert cohort.starts is not None
    before = cohort.weights.clone()
    cohort.gradients[:, : cohort.size] = 1.0
    take_step(cohort, EVERYTHING, torch.zeros(len(SIZES), cohort.size, dtype=torch.float64))
    assert torch.equal(cohort.starts, before) and not torch.equal(cohort.weights, before)

"""Cohorts on a GPU: of several runs at once, filled up to few sizes, their batches gathered by a kernel."""

from dataclasses import replace

import pytest
import torch

from fedceo.training.batched.cohort import Call, Cohort
from fedceo.training.batched.joining import Seat, find_seat
from fedceo.training.batched.trainer import BatchedTrainer
from fedceo.training.draws import HAS_TRITON
from fedceo.training.schedule import Schedule
from fedceo.training.work import RecordPrivacy, Work
from tests.support.gpu_training import RECORD, apart, context, make, near, starts

pytestmark = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a GPU and Triton")


@pytest.mark.parametrize("record", [None, RECORD], ids=["plain", "record"])
@pytest.mark.parametrize("which", ["mlp", "lenet5"])
def test_joined_runs_end_where_each_ends_alone(which: str, record: RecordPrivacy | None) -> None:
    """Own seeds, rates, clips and noises as rows of one captured step, which serves two rounds."""
    seats: list[Seat] = []
    for seed in range(3):
        here = replace(context(make(which)), schedule=Schedule(seed))
        seats.append(find_seat(BatchedTrainer(here), here, seats))
    assert len({id(seat.trainer) for seat in seats}) == 1 and seats[2].context.inputs is seats[0].context.inputs
    trainer = seats[0].trainer
    assert isinstance(trainer, BatchedTrainer)
    for round_ in (1, 2):
        calls = []
        for k, (seat, clients) in enumerate(zip(seats, ([0, 1], [2], [1, 3]), strict=True)):
            privacy = None if record is None else RecordPrivacy(record.clip / (k + 1), round_ * 0.5)
            work = Work(2, 32, 0.02 / round_ * (k + 1), momentum=0.5, record=privacy)
            calls.append(Call(seat.context, starts(seat.context.model, len(clients)), clients, round_, work))
        for call, found in zip(calls, trainer.train_together(calls), strict=True):
            alone = BatchedTrainer(call.context).train(call.starts, call.clients, round_, call.work)
            assert apart(alone.weights, found.weights, call.starts) < near(which)
            assert torch.allclose(alone.losses, found.losses, atol=1e-5 if which != "lenet5" else 1e-3)


@pytest.mark.parametrize("which", ["mlp", "lenet5"])
def test_a_kernel_gathers_what_indexing_gives(which: str) -> None:
    """Records, labels, counts and masks of every step of a padded cohort, to the last bit."""
    here, work = context(make(which)), Work(1, 32, 0.1, record=RECORD)
    clients, trainer = [0, 2, 3], BatchedTrainer(here)
    cohort = Cohort.of([trainer._share(Call(here, starts(here.model, 3), clients, 1, work))], here)
    plans = [here.plan(client, 1, work) for client in clients]
    for step in range(cohort.longest):
        cohort.step.fill_(step)
        batch = cohort.batch(here)
        x, labels = here.records(cohort.batches[step])
        assert torch.equal(batch.x, x) and torch.equal(batch.labels, labels)
        assert torch.equal(batch.counts, cohort.counts[step])
        for k, (indices, masks) in enumerate(plans):
            real = indices[step][indices[step] >= 0] if step < len(indices) else indices[0][:0]
            assert torch.equal(cohort.batches[step, k, : len(real)], real) and int(batch.counts[k]) == len(real)
            if masks is None or step >= len(masks):
                continue
            assert batch.mask is not None and torch.equal(batch.mask[k, : masks.shape[1]], masks[step])
        assert (batch.mask is None) == (which != "mlp")


@pytest.mark.parametrize("record", [None, RECORD], ids=["plain", "record"])
def test_a_large_cohort_is_filled_up_with_clients_that_change_nothing(record: RecordPrivacy | None) -> None:
    """36 clients are 40 rows, of which each client's is as it is among four."""
    model = make("mlp")
    here, begin, work = context(model), starts(model, 4), Work(2, 32, 0.05, momentum=0.5, record=record)
    few = BatchedTrainer(here).train(begin, [0, 1, 2, 3], 1, work)
    many = {name: w.repeat(9, *(1,) * (w.ndim - 1)) for name, w in begin.items()}
    found = BatchedTrainer(here).train(many, [0, 1, 2, 3] * 9, 1, work)
    assert found.losses.shape == (36,)
    for first in range(0, 36, 4):
        rows = {name: w[first : first + 4] for name, w in found.weights.items()}
        assert apart(few.weights, rows, begin) < near("mlp")

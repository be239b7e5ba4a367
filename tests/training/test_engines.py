"""Loop and batch give the same answer on the same Schedule; the loop is plain SGD; the rule that chooses."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedceo.errors import UsageError
from fedceo.models import build_model, parameters_of
from fedceo.models.mlp import MLP
from fedceo.tensors.weights import Weights
from fedceo.training.batched.blocks import CACHED
from fedceo.training.batched.cohort import Call
from fedceo.training.batched.trainer import BatchedTrainer
from fedceo.training.context import TrainingContext
from fedceo.training.engine import choose_engine, why_not_batched
from fedceo.training.loop import LoopTrainer
from fedceo.training.schedule import Schedule
from fedceo.training.work import RecordPrivacy, Work
from tests.support.small_federation import SIZES, SmallConv, federation
from tests.support.trainers import RECORD, Normed, context, difference, models, starts


class Branching(nn.Module):
    """A model whose layers depend on its input."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.flatten(1)) if x.sum() > 0 else -self.out(x.flatten(1))


@pytest.mark.parametrize("record", [None, RECORD], ids=["plain", "record"])
@pytest.mark.parametrize("which", ["mlp", "conv", "generic"])
def test_loop_and_batch_agree(which: str, record: RecordPrivacy | None) -> None:
    """Clients of unequal sizes, momentum and a proximal term."""
    clients = [0, 2, 3]
    for dtype, epochs, tolerance in ((torch.float32, 4, 1e-5), (torch.float64, 30, 1e-8)):
        work = Work(epochs, 4, 0.1, momentum=0.5, record=record, proximal=0.2)
        model = models()[which].to(dtype)
        begin = starts(model, len(clients))
        loop = LoopTrainer(context(model, dtype)).train(begin, clients, 2, work)
        batch = BatchedTrainer(context(model, dtype)).train(begin, clients, 2, work)
        assert difference(loop.weights, batch.weights) <= tolerance
        assert torch.allclose(loop.losses, batch.losses, atol=tolerance)
        assert difference(loop.weights, begin) > 1e-3, "something was learnt"


@pytest.mark.parametrize("cached", [CACHED, 200])
@pytest.mark.parametrize("which", ["with biases", "without", "with dropout", "convolution", "two convolutions"])
def test_steps_that_go_straight_into_the_weights_are_those_of_the_loop(
    which: str, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain SGD; the smallest client is done long before the others, and must stay where it is.

    Layers have more outputs than a batch has records, and fewer; with a cache of 200 bytes their weights are taken some
    columns at a time.
    """
    monkeypatch.setattr("fedceo.training.batched.blocks.CACHED", cached)
    torch.manual_seed(0)
    biases = which == "with biases"
    model: nn.Module = nn.Sequential(
        nn.Flatten(), nn.Linear(16, 8, biases), nn.ReLU(), nn.Linear(8, 3, biases)
    ).double()
    if which == "with dropout":
        model = models()["mlp"].double()
    elif which == "convolution":
        model = models()["conv"].double()
    elif which == "two convolutions":
        convolutions = nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 5, 2, bias=False), nn.MaxPool2d(2)
        model = nn.Sequential(*convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(5, 7), nn.Linear(7, 3)).double()
    begin, work = starts(model, 3), Work(5, 4, 0.1)
    here = context(model, torch.float64)
    loop, batch = (trainer(here).train(begin, [0, 2, 3], 2, work) for trainer in (LoopTrainer, BatchedTrainer))
    assert difference(loop.weights, batch.weights) <= 1e-12
    assert torch.allclose(loop.losses, batch.losses, atol=1e-12)
    assert difference(loop.weights, begin) > 1e-3, "something was learnt"


@pytest.mark.parametrize("record", [None, RECORD], ids=["plain", "record"])
def test_loop_and_batch_agree_on_lenet(record: RecordPrivacy | None) -> None:
    sizes = (9, 5)
    data = federation(sizes, shape=(3, 16, 16), classes=4)
    model = build_model("lenet5", (3, 16, 16), 4, seed=0).double()
    here = TrainingContext(model, data, Schedule(5), torch.device("cpu"), torch.float64)
    begin, work = starts(model, 2), Work(2, 4, 0.1, record=record)
    loop, batch = LoopTrainer(here).train(begin, [0, 1], 1, work), BatchedTrainer(here).train(begin, [0, 1], 1, work)
    assert difference(loop.weights, batch.weights) <= 1e-8
    assert difference(loop.weights, begin) > 1e-3


@pytest.mark.parametrize("record", [None, RECORD], ids=["plain", "record"])
def test_loop_and_batch_agree_on_an_lstm(record: RecordPrivacy | None) -> None:
    """Texts of several lengths; clients of two sizes."""
    data = federation((9, 5), shape=(6,), classes=2)
    tokens = (1 + data.x.abs() * 1000).int() * (torch.arange(6) < 1 + torch.arange(len(data.x))[:, None] % 6)
    model = build_model("lstm", (6,), 2, seed=0).double()
    here = TrainingContext(model, replace(data, x=tokens), Schedule(5), torch.device("cpu"), torch.float64)
    begin, work = starts(model, 2), Work(2, 4, 0.5, record=record)
    loop, batch = LoopTrainer(here).train(begin, [0, 1], 1, work), BatchedTrainer(here).train(begin, [0, 1], 1, work)
    assert difference(loop.weights, batch.weights) <= 1e-10
    assert torch.allclose(loop.losses, batch.losses, atol=1e-10)
    assert difference(loop.weights, begin) > 1e-3


@pytest.mark.parametrize("record", [None, RECORD], ids=["plain", "record"])
@pytest.mark.parametrize("which", ["mlp", "conv", "generic"])
def test_a_cohort_too_large_for_memory_trains_in_parts(
    which: str, record: RecordPrivacy | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models()[which]
    begin, work = starts(model, 4), Work(2, 4, 0.1, record=record)
    whole = BatchedTrainer(context(model)).train(begin, [0, 1, 2, 3], 1, work)
    small = BatchedTrainer(context(model), most_bytes=1)
    sizes: list[int] = []
    train = small._train

    def counted(calls: Sequence[Call], out: Weights) -> Tensor:
        sizes.extend(len(call.clients) for call in calls)
        return train(calls, out)

    monkeypatch.setattr(small, "_train", counted)
    parts = small.train(begin, [0, 1, 2, 3], 1, work)
    assert sizes == [1, 1, 1, 1]
    assert difference(whole.weights, parts.weights) < 1e-6
    assert torch.allclose(whole.losses, parts.losses, atol=1e-6)


@pytest.mark.parametrize("trainer", [LoopTrainer, BatchedTrainer])
def test_a_proximal_term_holds_clients_back(trainer: type[LoopTrainer] | type[BatchedTrainer]) -> None:
    """One full batch from the start moves alike, since w - start is 0; after that (1 - eta mu) of the way is kept."""
    model = models()["conv"]
    begin = starts(model, 1)
    here = context(model)

    def moved(epochs: int, proximal: float) -> dict[str, torch.Tensor]:
        trained = trainer(here).train(begin, [1], 1, Work(epochs, SIZES[1], 0.1, proximal=proximal))
        return {name: trained.weights[name] - w for name, w in begin.items()}

    first, second, held = moved(1, 0.0), moved(2, 0.0), moved(2, 3.0)
    assert difference(moved(1, 3.0), first) < 1e-7  # a step without terms rounds otherwise
    for name in begin:
        assert torch.allclose(held[name], second[name] - 0.1 * 3.0 * first[name], atol=1e-6)


@pytest.mark.parametrize("trainer", [LoopTrainer, BatchedTrainer])
def test_a_bad_record_switches_no_noise_off(trainer: type[LoopTrainer] | type[BatchedTrainer]) -> None:
    """With a NaN among its records a client still uploads noise, in every entry."""
    data = federation()
    data.x[data.train[0][0]] = torch.nan
    model = models()["conv"]
    here = TrainingContext(model, data, Schedule(5), torch.device("cpu"), torch.float32)
    begin = starts(model, 2)
    trained = trainer(here).train(begin, [0, 2], 1, Work(2, 4, 0.1, record=RECORD)).weights
    for name, w in begin.items():
        assert torch.isfinite(trained[name]).all()
        assert (trained[name] != w).all()


def test_a_client_trains_the_same_whoever_else_is_in() -> None:
    model = models()["mlp"]
    begin = starts(model, 4)
    together = BatchedTrainer(context(model)).train(begin, [0, 1, 2, 3], 1, Work(2, 4, 0.1))
    alone = BatchedTrainer(context(model)).train({n: w[1:2] for n, w in begin.items()}, [1], 1, Work(2, 4, 0.1))
    assert (
        difference({n: w[1] for n, w in together.weights.items()}, {n: w[0] for n, w in alone.weights.items()}) < 1e-6
    )


def test_the_loop_is_plain_sgd() -> None:
    """Against torch.optim on the same batches."""
    model = models()["conv"]
    here = context(model)
    work = Work(3, 4, 0.1, momentum=0.5)
    begin = starts(model, 1)
    got = LoopTrainer(here).train(begin, [2], 1, work)

    plain = SmallConv()
    plain.load_state_dict({name: w[0] for name, w in begin.items()})
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.5)
    batches = Schedule(5).batches(1, 2, SIZES[2], 3, 4)
    mine = here.federation.train[2]
    for row in batches:
        at = mine[row[row >= 0]]
        optimiser.zero_grad()
        torch.autograd.backward(F.cross_entropy(plain(here.federation.x[at]), here.federation.y[at]))
        optimiser.step()
    assert difference({n: w[0] for n, w in got.weights.items()}, parameters_of(plain)) < 1e-6


def test_dropout_masks_come_from_the_schedule() -> None:
    model = build_model("mlp", (1, 4, 4), 3, seed=0)
    begin = starts(model, 1)
    one = LoopTrainer(context(model)).train(begin, [0], 1, Work(1, 4, 0.1))
    torch.manual_seed(99)
    again = LoopTrainer(context(model)).train(begin, [0], 1, Work(1, 4, 0.1))
    other_round = LoopTrainer(context(model)).train(begin, [0], 2, Work(1, 4, 0.1))
    assert difference(one.weights, again.weights) == 0
    assert difference(one.weights, other_round.weights) > 0
    masks = Schedule(0).dropout_masks(1, 0, (200, 8), (64,), 0.5)
    assert set(masks.flatten().tolist()) == {0.0, 2.0}
    assert abs(float(masks.mean()) - 1.0) < 0.02


def test_a_model_with_dropout_of_its_own_repeats_too() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3))
    begin = starts(model, 2)
    one = LoopTrainer(context(model)).train(begin, [0, 1], 1, Work(1, 4, 0.1))
    torch.rand(7)
    again = LoopTrainer(context(model)).train(begin, [0, 1], 1, Work(1, 4, 0.1))
    assert difference(one.weights, again.weights) == 0


DROPOUT = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(16, 3))


@pytest.mark.parametrize(
    "model, engine, expected",
    [
        (MLP((1, 4, 4), 3), "auto", "batched"),
        (MLP((1, 4, 4), 3), "loop", "loop"),
        (SmallConv(), "auto", "batched"),
        (Normed(), "auto", "loop"),
        (Normed(), "batched", "batched"),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)), "auto", "batched"),
        (DROPOUT, "auto", "loop"),
        (Branching(), "auto", "loop"),
    ],
)
def test_the_rule_that_chooses(model: nn.Module, engine: str, expected: str) -> None:
    assert choose_engine(context(model), engine) == expected


@pytest.mark.parametrize("model, reason", [(DROPOUT, "random"), (Branching(), "control flow")])
def test_a_model_that_cannot_be_batched_is_named(model: nn.Module, reason: str) -> None:
    assert reason in (why_not_batched(context(model)) or "")
    with pytest.raises(UsageError, match=rf"train.engine: the model cannot be batched \(.*{reason}"):
        choose_engine(context(model), "batched")

"""Loop and batch give the same answer on the same Schedule; both equal plain SGD written by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedceo.errors import UsageError
from fedceo.models import build_model, parameters_of
from fedceo.models.mlp import MLP
from fedceo.training.batched import BatchedTrainer
from fedceo.training.engine import choose_engine
from fedceo.training.loop import LoopTrainer
from fedceo.training.schedule import Schedule
from fedceo.training.work import Place, RecordPrivacy, Weights, Work
from tests.small import SIZES, SmallConv, federation


def place(model: nn.Module, dtype: torch.dtype = torch.float32) -> Place:
    return Place(model.to(dtype), federation(), Schedule(5), torch.device("cpu"), dtype)


def models() -> list[nn.Module]:
    torch.manual_seed(0)
    return [build_model("mlp", (1, 4, 4), 3, seed=0), SmallConv()]


def starts(model: nn.Module, clients: int) -> dict[str, torch.Tensor]:
    """Different for every client, so that a mix-up shows."""
    torch.manual_seed(3)
    return {name: w + 0.01 * torch.randn(clients, *w.shape, dtype=w.dtype) for name, w in parameters_of(model).items()}


def difference(a: Weights, b: Weights) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


RECORD = RecordPrivacy(clip=0.5, noise_multiplier=1.0)


@pytest.mark.parametrize("record", [None, RECORD], ids=["plain", "record"])
@pytest.mark.parametrize("which", [0, 1], ids=["mlp", "conv"])
def test_loop_and_batch_agree(which: int, record: RecordPrivacy | None) -> None:
    clients = [0, 2, 3]
    for dtype, epochs, tolerance in ((torch.float32, 4, 1e-5), (torch.float64, 30, 1e-8)):
        work = Work(epochs, 4, 0.1, momentum=0.5, record=record)
        model = models()[which].to(dtype)
        begin = starts(model, len(clients))
        loop = LoopTrainer(place(model, dtype)).train(begin, clients, 2, work)
        batch = BatchedTrainer(place(model, dtype)).train(begin, clients, 2, work)
        assert difference(loop.weights, batch.weights) <= tolerance
        assert torch.allclose(loop.losses, batch.losses, atol=tolerance)
        assert difference(loop.weights, begin) > 1e-3, "something was learnt"


def test_a_client_trains_the_same_whoever_else_is_in() -> None:
    model = models()[0]
    begin = starts(model, 4)
    together = BatchedTrainer(place(model)).train(begin, [0, 1, 2, 3], 1, Work(2, 4, 0.1))
    alone = BatchedTrainer(place(model)).train({n: w[1:2] for n, w in begin.items()}, [1], 1, Work(2, 4, 0.1))
    assert (
        difference({n: w[1] for n, w in together.weights.items()}, {n: w[0] for n, w in alone.weights.items()}) < 1e-6
    )


def test_the_loop_is_plain_sgd() -> None:
    """Against torch.optim on the same batches."""
    model = models()[1]
    here = place(model)
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
        F.cross_entropy(plain(here.federation.x[at]), here.federation.y[at]).backward()
        optimiser.step()
    assert difference({n: w[0] for n, w in got.weights.items()}, parameters_of(plain)) < 1e-6


def test_dropout_masks_come_from_the_schedule() -> None:
    model = build_model("mlp", (1, 4, 4), 3, seed=0)
    begin = starts(model, 1)
    one = LoopTrainer(place(model)).train(begin, [0], 1, Work(1, 4, 0.1))
    torch.manual_seed(99)
    again = LoopTrainer(place(model)).train(begin, [0], 1, Work(1, 4, 0.1))
    other_round = LoopTrainer(place(model)).train(begin, [0], 2, Work(1, 4, 0.1))
    assert difference(one.weights, again.weights) == 0
    assert difference(one.weights, other_round.weights) > 0
    masks = Schedule(0).dropout_masks(1, 0, (200, 8), (64,), 0.5)
    assert set(masks.unique().tolist()) == {0.0, 2.0}
    assert abs(float(masks.mean()) - 1.0) < 0.02


def test_a_model_with_dropout_of_its_own_repeats_too() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3))
    begin = starts(model, 2)
    one = LoopTrainer(place(model)).train(begin, [0, 1], 1, Work(1, 4, 0.1))
    torch.rand(7)
    again = LoopTrainer(place(model)).train(begin, [0, 1], 1, Work(1, 4, 0.1))
    assert difference(one.weights, again.weights) == 0


@pytest.mark.parametrize(
    "model, engine, record, expected",
    [
        (MLP((1, 4, 4), 3), "auto", False, "batched"),
        (MLP((1, 4, 4), 3), "auto", True, "batched"),
        (SmallConv(), "auto", False, "loop"),
        (SmallConv(), "batched", False, "batched"),
        (nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(16, 3)), "auto", False, "loop"),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 3000), nn.Linear(3000, 3000)), "auto", True, "loop"),
    ],
)
def test_the_rule_that_chooses(model: nn.Module, engine: str, record: bool, expected: str) -> None:
    assert choose_engine(place(model), engine, cohort=10, batch_size=64, record_level=record) == expected


def test_a_model_that_cannot_be_batched_is_named() -> None:
    with pytest.raises(UsageError, match=r"train.engine: the model cannot be batched"):
        choose_engine(place(nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(16, 3))), "batched", 10, 64, False)

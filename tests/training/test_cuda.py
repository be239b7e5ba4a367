"""The batch on a GPU, with its kernels, captured steps and draws of its own, against the loop there."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedceo.models import build_model, parameters_of
from fedceo.simulation.evaluation import Evaluator
from fedceo.tensors.weights import Weights
from fedceo.training.batched.chain import Chain
from fedceo.training.batched.cohort import Batch, Cohort
from fedceo.training.batched.tracing import read_chain
from fedceo.training.batched.trainer import BatchedTrainer
from fedceo.training.context import TrainingContext
from fedceo.training.draws import HAS_TRITON
from fedceo.training.loop import LoopTrainer
from fedceo.training.schedule import Schedule
from fedceo.training.work import RecordPrivacy, Work
from tests.support.gpu_training import RECORD, SIZES, apart, context, make, near, starts
from tests.support.small_federation import federation

pytestmark = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a GPU and Triton")


def difference(a: Weights, b: Weights) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """No TF32, neither in products nor in the loop's convolutions."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert torch.get_float32_matmul_precision() == "highest"


def exact_loop(
    here: TrainingContext, begin: Weights, clients: list[int], work: Work
) -> tuple[dict[str, Tensor], Tensor]:
    """The loop's weights in float64, on the same batches, masks and noise."""
    twin = replace(here, model=deepcopy(here.model).double(), dtype=torch.float64)
    trained = LoopTrainer(twin).train(begin, clients, 1, work)
    return {name: w.float() for name, w in trained.weights.items()}, trained.losses.float()


@pytest.mark.parametrize("record", [None, RECORD], ids=["plain", "record"])
@pytest.mark.parametrize("which", ["mlp", "lenet5", "generic", "asking"])
def test_loop_and_batch_agree(which: str, record: RecordPrivacy | None) -> None:
    """20 steps of the largest client; unequal sizes, momentum, a proximal term."""
    model = make(which)
    here, clients = context(model), [0, 2, 3]
    work = Work(4, 32, 0.02, momentum=0.5, record=record, proximal=0.1)
    begin = starts(model, len(clients))
    trainer = BatchedTrainer(here)
    batch = trainer.train(begin, clients, 1, work)
    weights, losses = exact_loop(here, begin, clients, work)
    assert difference(weights, begin) > 1e-3, "something was learnt"
    assert apart(weights, batch.weights, begin) < near(which)
    assert torch.allclose(losses, batch.losses, atol=1e-5 if which != "lenet5" else 1e-3)
    assert trainer.captured is not None
    assert (trainer.captured.why_not is None) == (which != "asking")
    assert isinstance(trainer.program, Chain) == (which in ("mlp", "lenet5"))


class Strided(nn.Module):
    """Strides and padding, no biases, channels that fill no tile, pooling that leaves a margin."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 20, 3, stride=2, padding=1, bias=False)
        self.two = nn.Conv2d(20, 70, 4, padding=2)
        self.out = nn.Linear(70 * 25, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.two(self.one(x).relu()), 3)
        return self.out(x.relu().flatten(1))


class Deep(nn.Module):
    """Kernels that are large beside the maps they run on, pooling that leaves a margin."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 24, 8, stride=4)
        self.two = nn.Conv2d(24, 48, 4, padding=1)
        self.three = nn.Conv2d(48, 120, 3, padding=1, bias=False)
        self.out = nn.Linear(120, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.two(self.one(x).relu()).relu(), 2)
        return self.out(nn.functional.max_pool2d(self.three(x), 2).relu().flatten(1))


MODELS = pytest.mark.parametrize(
    "make_model", [lambda: make("lenet5"), Strided, Deep], ids=["lenet5", "strided", "deep"]
)
PRECISIONS = pytest.mark.parametrize("precision", ["highest", "high"])


@pytest.fixture
def multiply_in() -> Iterator[Callable[[str], None]]:
    """Sets the precision of products for one test."""
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision("highest")


@PRECISIONS
@pytest.mark.parametrize("clip", [None, 0.05])
@MODELS
def test_kernels_give_the_gradients_of_float64(
    make_model: Callable[[], nn.Module], clip: float | None, precision: str, multiply_in: Callable[[str], None]
) -> None:
    """Each parameter's to six digits, but for batches in which a near tie fell the other way: not more than half.

    With ten bits near ties are in every batch, and each moves the gradient to a neighbour that is as good.
    """
    multiply_in(precision)
    model = make_model().cuda()
    chain = read_chain(model, (3, 32, 32))
    counts = torch.tensor([6, 4, 0]).cuda()
    clips = None if clip is None else torch.tensor([clip, 2 * clip, clip]).cuda()
    exact_clips = None if clips is None else clips.double()
    worst = []
    for seed in range(7):
        torch.manual_seed(seed)
        weights = {n: w + 0.01 * torch.randn(3, *w.shape).cuda() for n, w in parameters_of(model).items()}
        x, y = torch.randn(3, 16, 3, 32, 32).cuda(), torch.randint(5, (3, 16)).cuda()
        out = {name: torch.full_like(w, torch.nan) for name, w in weights.items()}
        exact = {name: w.double() for name, w in out.items()}
        losses = chain.fused().gradient(weights, Batch(x, y, counts), clips, out)
        twin = {name: w.double() for name, w in weights.items()}
        expected = chain.gradient(twin, Batch(x.double(), y, counts), exact_clips, exact)
        assert torch.allclose(losses, expected.float(), atol=1e-5 if precision == "highest" else 3e-3)
        worst.append(max(float((out[n] - exact[n]).norm() / exact[n].norm()) for n in out))
        assert all(bool((g[2] == 0).all()) for g in out.values()), "no record, no gradient"
    assert sorted(worst)[3] < (1e-5 if precision == "highest" else 0.05), worst


@PRECISIONS
@MODELS
def test_no_record_moves_more_than_the_clip(
    make_model: Callable[[], nn.Module], precision: str, multiply_in: Callable[[str], None]
) -> None:
    """Of the gradient that is summed, rounded as it is, not of the one that was meant; scales from tiny to huge."""
    multiply_in(precision)
    model = make_model().cuda()
    chain = read_chain(model, (3, 32, 32)).fused()
    clips = torch.tensor([1e-3, 0.05, 1.0]).cuda()
    for seed, size in enumerate((1e-2, 1.0, 30.0, 1e3)):
        torch.manual_seed(seed)
        weights = {n: w + 0.05 * torch.randn(3, *w.shape).cuda() for n, w in parameters_of(model).items()}
        x, y = size * torch.randn(3, 16, 3, 32, 32).cuda(), torch.randint(5, (3, 16)).cuda()
        batch = Batch(x, y, torch.ones(3, dtype=torch.int64).cuda())
        out = {name: torch.full_like(w, torch.nan) for name, w in weights.items()}
        chain.gradient(weights, batch, clips, out)
        norms = torch.cat([g.flatten(1) for g in out.values()], 1).double().norm(dim=1)
        assert (norms <= clips).all(), (norms / clips).tolist()


@PRECISIONS
@pytest.mark.parametrize("record", [None, RECORD], ids=["plain", "record"])
def test_a_layer_that_is_left_as_a_product_takes_the_same_step(
    record: RecordPrivacy | None, precision: str, multiply_in: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against gradients written down, with the same noise, momentum and proximal term."""
    multiply_in(precision)
    model = make("mlp")
    here, begin = context(model), starts(model, 3)
    work = Work(2, 32, 0.02, momentum=0.5, record=record, proximal=0.1)
    left = BatchedTrainer(here).train(begin, [0, 2, 3], 1, work).weights
    monkeypatch.setattr(Cohort, "is_aligned", False)
    written = BatchedTrainer(here).train(begin, [0, 2, 3], 1, work).weights
    assert apart(written, left, begin) < (1e-5 if precision == "highest" else 3e-3)


@pytest.mark.parametrize("record", [None, RECORD], ids=["plain", "record"])
def test_loop_and_batch_agree_in_float64(record: RecordPrivacy | None) -> None:
    """Without kernels, as where there is no Triton."""
    model = make("lenet5").double()
    here = replace(context(model), dtype=torch.float64)
    work = Work(2, 32, 0.02, momentum=0.5, record=record)
    begin = {name: w.double() for name, w in starts(model, 2).items()}
    loop, batch = (trainer(here).train(begin, [0, 3], 1, work) for trainer in (LoopTrainer, BatchedTrainer))
    assert difference(loop.weights, batch.weights) <= 1e-8


def test_captured_steps_serve_later_rounds() -> None:
    """Other cohorts, other sizes, other rates: the same bits as a trainer that never saw another round."""
    model = make("lenet5")
    here = context(model)
    trainer = BatchedTrainer(here)
    for round_, clients in enumerate(([0, 1], [2, 3], [0, 1, 2], [1, 3], [0, 1]), start=1):
        work = Work(1, 32, 0.1 / round_, record=RECORD)
        begin = starts(model, len(clients))
        used, fresh = (each.train(begin, clients, round_, work) for each in (trainer, BatchedTrainer(here)))
        assert difference(used.weights, fresh.weights) == 0


def test_a_cohort_trains_in_parts() -> None:
    model = make("lenet5")
    here, begin, work = context(model), starts(model, 4), Work(1, 32, 0.05, record=RECORD)
    whole = BatchedTrainer(here).train(begin, [0, 1, 2, 3], 1, work)
    parts = BatchedTrainer(here, most_bytes=1).train(begin, [0, 1, 2, 3], 1, work)
    assert apart(whole.weights, parts.weights, begin) < near("lenet5")


@pytest.mark.parametrize("which", ["mlp", "lenet5", "generic"])
def test_noise_has_the_size_asked_and_never_comes_twice(which: str) -> None:
    """With a vanishing clip a step is noise alone: clients, steps and rounds must have nothing in common."""
    model = make(which)
    here, rate, std = context(model), 0.5, 1.0
    begin = {name: w.expand(2, *w.shape) for name, w in parameters_of(model).items()}
    record = RecordPrivacy(clip=1e-4, noise_multiplier=std / 1e-4)

    def moved(epochs: int, round_: int) -> Tensor:
        after = BatchedTrainer(here).train(begin, [0, 2], round_, Work(epochs, 1000, rate, record=record)).weights
        return torch.cat([(after[name] - w).flatten(1) for name, w in begin.items()], 1).double().cpu()

    one, two, other = moved(1, 1), moved(2, 1), moved(1, 2)
    sizes = torch.tensor([[SIZES[0]], [SIZES[2]]])
    draws = torch.cat([one, two - one, other]) * torch.cat([sizes] * 3) / (rate * std)
    entries = draws.shape[1]
    assert (draws.mean(1).abs() < 5 / entries**0.5).all()
    assert torch.allclose(draws.std(1), torch.ones(6, dtype=torch.float64), atol=5 / (2 * entries) ** 0.5 + 1e-3)
    assert torch.allclose(
        draws.pow(4).mean(1), torch.full((6,), 3.0, dtype=torch.float64), atol=5 * (96 / entries) ** 0.5
    )
    assert (torch.corrcoef(draws).fill_diagonal_(0).abs() < 5 / entries**0.5).all()


@pytest.mark.parametrize("which", ["lenet5", "mlp"])
def test_own_models_measured_together_are_those_measured_alone(which: str) -> None:
    model = make(which)
    here = context(model)
    evaluator = Evaluator(model, here.federation, here.device, here.dtype)
    spread = {name: w + 0.05 * torch.randn_like(w) for name, w in starts(model, 5).items()}
    models = [(k, {name: w[k] for name, w in spread.items()}) for k in range(5)]
    x, y = here.federation.x.cuda(), here.federation.y.cuda()
    together = dict(evaluator._hits(models, x, y))
    for k, weights in models:
        alone = evaluator._run(weights, x, y)[0]
        assert (together[k] != alone).float().mean() < 0.02, "near ties may fall the other way"


def test_a_bad_record_switches_no_noise_off() -> None:
    model = make("lenet5")
    begin = starts(model, 2)
    here = context(model, bad=True)
    work = Work(1, 32, 0.1, record=RECORD)
    trained = BatchedTrainer(here).train(begin, [0, 2], 1, work).weights
    for name, w in begin.items():
        assert torch.isfinite(trained[name]).all()
        assert float((trained[name] != w).double().mean()) > 0.999
    assert apart(exact_loop(here, begin, [0, 2], work)[0], trained, begin) < near("lenet5")


def test_system_randomness_never_repeats_and_a_seed_does() -> None:
    model = make("mlp")
    begin, work = starts(model, 2), Work(1, 32, 0.1, record=RECORD)
    for randomness, same in (("seeded", True), ("system", False)):
        here = context(model, randomness)
        one, two = (BatchedTrainer(here).train(begin, [0, 1], 1, work).weights for _ in range(2))
        assert (difference(one, two) == 0) == same


def test_tf32_is_near() -> None:
    """Where torch's switch allows it; near ties fall otherwise more often then."""
    model = make("lenet5")
    here, begin, work = context(model), starts(model, 2), Work(1, 64, 0.05)
    trainer = BatchedTrainer(here)
    exact = trainer.train(begin, [0, 2], 1, work).weights
    torch.set_float32_matmul_precision("high")
    try:
        rounded = trainer.train(begin, [0, 2], 1, work).weights
    finally:
        torch.set_float32_matmul_precision("highest")
    assert 0 < apart(exact, rounded, begin) < 0.2


@pytest.mark.parametrize("record", [None, RECORD], ids=["plain", "record"])
def test_an_lstm_is_captured_and_agrees_with_the_loop(record: RecordPrivacy | None) -> None:
    data = federation((40, 17, 64), (9,), classes=2)
    tokens = (1 + data.x.abs() * 1000).int() * (torch.arange(9) < 1 + torch.arange(len(data.x))[:, None] % 9)
    model = build_model("lstm", (9,), 2, seed=0).cuda()
    here = TrainingContext(model, replace(data, x=tokens), Schedule(5), torch.device("cuda"), torch.float32)
    begin, work = starts(model, 3), Work(2, 16, 0.5, record=record)
    loop, trainer = LoopTrainer(here).train(begin, [0, 1, 2], 1, work), BatchedTrainer(here)
    batch = trainer.train(begin, [0, 1, 2], 1, work)
    assert isinstance(trainer.program, Chain) and trainer.captured and trainer.captured.why_not is None
    assert apart(loop.weights, batch.weights, begin) < 1e-4

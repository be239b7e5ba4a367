"""Blocks on a GPU's kernels against float64: first convolutions of many shapes, linear layers with bad records."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from fedceo.models import parameters_of
from fedceo.training.batched.blocks import Linear
from fedceo.training.batched.cohort import Batch
from fedceo.training.batched.tracing import read_chain
from fedceo.training.draws import HAS_TRITON

pytestmark = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a GPU and Triton")


@pytest.fixture(autouse=True)
def tf32() -> Iterator[None]:
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


class Shallow(nn.Module):
    """One convolution and a linear layer."""

    def __init__(self, channels: int, out: int, side: int, padding: int, bias: bool, size: tuple[int, int]) -> None:
        super().__init__()
        self.one = nn.Conv2d(channels, out, side, padding=padding, bias=bias)
        rows, columns = ((length + 2 * padding - side + 1) // 2 for length in size)
        self.out = nn.Linear(out * rows * columns, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(nn.functional.max_pool2d(self.one(x).relu(), 2).flatten(1))


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize(
    ("channels", "out", "side", "padding", "bias", "size"),
    [
        (3, 32, 5, 0, True, (32, 32)),
        (1, 20, 3, 1, False, (9, 12)),
        (2, 70, 4, 2, True, (13, 13)),
        (3, 10, 7, 1, True, (20, 16)),  # more entries than a tile has
    ],
)
def test_a_first_convolution_has_the_gradients_of_float64(
    channels: int, out: int, side: int, padding: int, bias: bool, size: tuple[int, int], clip: float | None
) -> None:
    """Records cut into blocks, odd sizes and margins among them; filling may hold anything.

    To two digits: a near tie that falls the other way moves the gradient to a neighbour that is as good.
    """
    torch.manual_seed(0)
    model = Shallow(channels, out, side, padding, bias, size).cuda()
    chain, counts = read_chain(model, (channels, *size)), torch.tensor([5, 0, 3]).cuda()
    clips = None if clip is None else torch.tensor([clip, clip, 2 * clip]).cuda()
    worst = []
    for _ in range(5):
        weights = {n: w + 0.01 * torch.randn(3, *w.shape).cuda() for n, w in parameters_of(model).items()}
        x, y = torch.randn(3, 16, channels, *size).cuda(), torch.randint(5, (3, 16)).cuda()
        found = {name: torch.full_like(w, torch.nan) for name, w in weights.items()}
        exact = {name: w.double() for name, w in found.items()}
        twin = {name: w.double() for name, w in weights.items()}
        chain.gradient(twin, Batch(x.double(), y, counts), None if clips is None else clips.double(), exact)
        if clips is not None:
            for k, count in enumerate(counts.tolist()):
                x[k, count:] = torch.nan
        chain.fused().gradient(weights, Batch(x, y, counts), clips, found)
        worst.append(max(float((found[n] - exact[n]).norm() / exact[n].norm()) for n in found))
    assert sorted(worst)[2] < 0.05, worst


@pytest.mark.parametrize(("inputs", "size"), [(1600, 512), (515, 515), (600, 10), (41, 60)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_layer_drops_bad_records_and_keeps_the_others(inputs: int, size: int, bias: bool) -> None:
    """Gradients of inputs, weight and bias, where records with a factor of 0 hold NaN."""
    from fedceo.training.cuda.blocks import FusedLinear

    torch.manual_seed(0)
    counts, slots = torch.tensor([70, 0, 9]).cuda(), 80
    weights = {"w": 0.1 * torch.randn(3, size, inputs).cuda()} | ({"b": torch.randn(3, size).cuda()} if bias else {})
    x, dy = torch.randn(3, slots, inputs).cuda(), 1e-3 * torch.randn(3, slots, size).cuda()
    factors = torch.rand(3, slots).cuda() * (torch.arange(slots).cuda() < counts[:, None])
    factors[0, 4] = factors[2, 0] = 0
    there = (factors > 0)[..., None]
    kept = torch.where(there, dy.double() * factors[..., None].double(), 0.0)
    expected = torch.bmm(kept.mT, torch.where(there, x.double(), 0.0))
    dx = torch.bmm(dy.double(), weights["w"].double())
    block = FusedLinear(Linear("w", "b" if bias else None, masked=False, relu=False))
    pass_ = block.run(weights, torch.where(there, x, torch.nan), Batch(x, x, counts))
    back = pass_.backward(torch.where(there, dy, torch.nan), needs_dx=True)
    sums = {name: torch.full_like(w, torch.nan) for name, w in weights.items()}
    pass_.sum_gradients(factors, sums)

    def near(found: Tensor, exact: Tensor) -> bool:
        return float((found - exact).norm()) < 2e-3 * float(exact.norm())

    assert back is not None and near(back[there[..., 0]], dx[there[..., 0]])
    assert near(sums["w"], expected) and bool((sums["w"][1] == 0).all())
    assert not bias or near(sums["b"], kept.sum(1))

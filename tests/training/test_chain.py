"""Models read as chains of layers, and the blocks' gradients against autograd's."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedceo.models import build_model, parameters_of
from fedceo.training.batched.blocks import Linear, squares_of_sums
from fedceo.training.batched.cohort import Batch
from fedceo.training.batched.convolution import Conv, squares_by_position
from fedceo.training.batched.recurrent import Recurrent
from fedceo.training.batched.tracing import NotAChainError, read_chain
from tests.support.small_federation import SmallConv


class Strided(nn.Module):
    """Strides, padding, pooling before ReLU and after, layers without biases."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(2, 5, 3, stride=2, padding=1)
        self.two = nn.Conv2d(5, 6, (3, 2), padding=1, bias=False)
        self.out = nn.Linear(54, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.two(torch.relu(self.one(x))), 2)
        return self.out(torch.flatten(F.relu(x), 1))


def sequential() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(108, 7),
        nn.ReLU(),
        nn.Linear(7, 4),
    )


class Deep(nn.Module):
    """Kernels that are large beside the maps they run on, whose records' gradients are not formed."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(2, 12, 5, stride=4, padding=2)
        self.two = nn.Conv2d(12, 64, 3, padding=1)
        self.three = nn.Conv2d(64, 96, 3, padding=1, bias=False)
        self.out = nn.Linear(96, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.two(self.one(x).relu()).relu()
        return self.out(F.max_pool2d(self.three(x), 2).relu().flatten(1))


class ChannelsLast(nn.Module):
    """Images that are stored with channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(12, 5, (2, 3)), nn.Linear(50, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.conv(x.permute(0, 3, 1, 2)).relu().flatten(1))


SHAPES = [(3, 1, 1), (2, 1, 0), (3, 2, 1), (1, 1, 0)]
"""Side, stride and padding of kernels."""


def conv(side: int, stride: int = 1, padding: int = 0, bias: bool = True) -> Conv:
    return Conv("w", "b" if bias else None, (side, side), (stride, stride), (padding, padding), False, 1)


def test_gradients_are_formed_where_that_takes_fewer_products() -> None:
    assert conv(5).forms_gradients((32, 14, 14), (64, 10, 10))  # LeNet-5's second convolution
    assert not conv(5, padding=2).forms_gradients((64, 4, 4), (192, 4, 4))  # AlexNet's second
    assert not conv(3, padding=1).forms_gradients((12, 3, 3), (64, 3, 3))  # those of Deep
    assert not conv(3, padding=1).forms_gradients((64, 3, 3), (96, 3, 3))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(SHAPES), st.floats(0, 7), st.booleans())
def test_norms_by_position_are_never_too_small(
    seed: int, shape: tuple[int, int, int], digits: float, bias: bool
) -> None:
    """Also where the positions' gradients cancel in all but a few of float32's digits, and with a margin left out."""
    block, rng = conv(*shape, bias), torch.Generator().manual_seed(seed)
    column = torch.randn(3, 5, 4, 1, generator=rng)
    x = column.expand(-1, -1, -1, 8).contiguous()  # the same patch at neighbouring positions, inside
    patches = F.unfold(x, block.side, stride=block.stride, padding=block.padding)
    rows, columns = ((length + 2 * shape[2] - shape[0]) // shape[1] + 1 for length in (4, 8))
    g = torch.randn(3, 7, rows, columns - 1, generator=rng)
    g[..., 2] = -g[..., 1] * (1 + 10**-digits)
    g[..., 3:], g[..., 0] = 0, 0
    patches = patches.unflatten(2, (rows, columns))[..., : columns - 1].flatten(2)
    formed = torch.bmm(g.flatten(2), patches.mT).double().square().sum((1, 2))  # as float32 sums them up
    formed += float(bias) * g.sum((2, 3)).double().square().sum(1)
    found = squares_by_position(x, g, block)
    sizes = ((patches.norm(dim=1).square() + bias).sqrt() * g.flatten(2).norm(dim=1)).sum(1)
    assert (found >= formed).all()
    assert (found.sqrt() <= formed.sqrt() + 4e-6 * sizes).all()


CLIPS = pytest.mark.parametrize("clips", [None, (0.05, 0.02, 0.1)], ids=["mean", "clipped"])


@pytest.mark.parametrize("make", [Strided, sequential, Deep, ChannelsLast])
@CLIPS
def test_gradients_are_those_of_autograd(make: type[nn.Module], clips: tuple[float, ...] | None) -> None:
    """Every client's records are clipped at its own norm."""
    torch.manual_seed(0)
    compare_with_autograd(make().double(), torch.randn(3, 6, 2, 12, 12, dtype=torch.float64), clips)


@CLIPS
def test_the_gradients_of_an_lstm_are_those_of_autograd(clips: tuple[float, ...] | None) -> None:
    """Also of texts that end before the others, and of one without a token."""
    torch.manual_seed(0)
    lengths = torch.randint(0, 8, (3, 6, 1))
    tokens = torch.randint(1, 10_001, (3, 6, 7)) * (torch.arange(7) < lengths)
    assert (lengths == 0).any()
    compare_with_autograd(build_model("lstm", (7,), 4, seed=0).double(), tokens.double(), clips)


def compare_with_autograd(model: nn.Module, x: Tensor, clips: tuple[float, ...] | None) -> None:
    """x: (3, 6, ...) records of three clients, some of which are filling."""
    weights = {n: w + 0.1 * torch.randn(3, *w.shape, dtype=w.dtype) for n, w in parameters_of(model).items()}
    y, counts = torch.randint(4, (3, 6)), torch.tensor([6, 2, 0])
    each_clip = None if clips is None else torch.tensor(clips, dtype=torch.float64)
    out = {name: torch.full_like(w, torch.nan) for name, w in weights.items()}
    losses = read_chain(model, x.shape[2:]).gradient(weights, Batch(x, y, counts), each_clip, out)

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, weights, (x[None],)), y[None])

    for k, count in enumerate(counts.tolist()):
        mine = {name: w[k] for name, w in weights.items()}
        each = vmap(grad(loss), in_dims=(None, 0, 0))(mine, x[k], y[k])
        present = (torch.arange(6) < count).double()
        if clips is None:
            expected = {n: torch.einsum("b,b...->...", present / max(count, 1), g) for n, g in each.items()}
        else:
            norms = torch.cat([g.flatten(1) for g in each.values()], 1).norm(dim=1)
            factors = present * (clips[k] / (norms + 1e-6)).clamp_max(
                1.0
            )  # with the guard against zero that Opacus has
            expected = {n: torch.einsum("b,b...->...", factors, g) for n, g in each.items()}
        for name, g in expected.items():
            assert torch.allclose(out[name][k], g, atol=1e-12), (name, k)
        if count:
            mean = F.cross_entropy(functional_call(model, mine, (x[k, :count],)), y[k, :count])
            assert torch.allclose(losses[k], mean)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("which", ["mlp", "conv"])
def test_a_record_that_is_not_finite_counts_as_zero(which: str, bad: float) -> None:
    """And nothing else changes: not the other records' part, not the other client's."""
    model = build_model("mlp", (1, 4, 4), 3, seed=0) if which == "mlp" else SmallConv()
    weights = {name: w.expand(2, *w.shape).clone() for name, w in parameters_of(model).items()}
    torch.manual_seed(1)
    x, y = torch.randn(2, 4, 1, 4, 4), torch.randint(3, (2, 4))
    chain, clips = read_chain(model, (1, 4, 4)), torch.full((2,), 0.5)
    without, with_ = ({name: torch.zeros_like(w) for name, w in weights.items()} for _ in range(2))
    chain.gradient(weights, Batch(x, y, torch.tensor([3, 4])), clips, without)
    x[0, 3, 0, 1, 1] = bad
    chain.gradient(weights, Batch(x, y, torch.tensor([4, 4])), clips, with_)
    for name in weights:
        assert torch.isfinite(with_[name]).all()
        assert torch.allclose(with_[name], without[name], atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.floats(0, 7))
def test_norms_over_tokens_are_never_too_small(seed: int, digits: float) -> None:
    """Also where the tokens' gradients cancel in all but a few of float32's digits."""
    rng = torch.Generator().manual_seed(seed)
    u, g = torch.randn(3, 1, 5, generator=rng).expand(-1, 6, -1), torch.randn(3, 6, 7, generator=rng)
    g[:, 1::2] = -g[:, ::2] * (1 + 10**-digits)
    formed = torch.bmm(g.mT, u).double().square().sum((1, 2))
    inputs, outputs = (torch.bmm(each.double(), each.double().mT) for each in (u, g))
    found = squares_of_sums(inputs, outputs, torch.finfo(torch.float32).eps)
    sizes = (u.norm(dim=2) * g.norm(dim=2)).sum(1)
    assert (found >= formed).all()
    assert (found.sqrt() <= formed.sqrt() + 4e-6 * sizes).all()


def test_the_models_here_are_chains() -> None:
    lstm = read_chain(build_model("lstm", (7,), 3, seed=0), (7,))
    assert lstm.blocks[:2] == (Recurrent("lstm1", at_last=False), Recurrent("lstm2", at_last=True))
    mlp = read_chain(build_model("mlp", (1, 4, 4), 3, seed=0), (1, 4, 4))
    assert mlp.blocks == (Linear("input.weight", None, True, True), Linear("hidden.weight", None, False, False))
    lenet = read_chain(build_model("lenet5", (3, 32, 32), 10, seed=0), (3, 32, 32))
    assert [type(block) for block in lenet.blocks] == [Conv, Conv, Linear, Linear, Linear]
    assert all(block.relu and block.pool == 2 for block in lenet.blocks if isinstance(block, Conv))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.two(x + self.one(x))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.flatten(1)) if x.sum() > 0 else -self.out(x.flatten(1))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.out = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.one(self.one(x.flatten(1)).relu()))


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    model[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


@pytest.mark.parametrize(
    "model",
    [
        Residual(),
        Branching(),
        Tied(),
        hooked(),
        nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.Tanh()),
        nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(16, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 2, dilation=2), nn.Flatten(), nn.Linear(8, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 2), nn.MaxPool2d(2, stride=1), nn.Flatten(), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(4, 3), nn.Flatten(), nn.Linear(12, 3)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_other_models_are_not_chains(model: nn.Module) -> None:
    with pytest.raises(NotAChainError):
        read_chain(model, (1, 4, 4))

"""The paper's architectures: parameters, shapes, and what is refused."""

import pytest
import torch
from torch import nn

from fedceo.errors import UsageError
from fedceo.models import build_model, check_model


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_parameter_counts() -> None:
    assert size(build_model("lenet5", (3, 32, 32), 10, 0)) == 1_141_194
    assert size(build_model("mlp", (1, 28, 28), 37, 0)) == 784 * 64 + 64 * 37
    assert all("bias" not in name for name, _ in build_model("mlp", (64,), 10, 0).named_parameters())


@pytest.mark.parametrize(
    "name, shape", [("mlp", (64,)), ("mlp", (1, 8, 8)), ("lenet5", (3, 32, 32)), ("lenet5", (1, 28, 28))]
)
def test_models_take_their_data_and_repeat(name: str, shape: tuple[int, ...]) -> None:
    model = build_model(name, shape, 10, seed=4)
    check_model(model, shape, 10)
    again = build_model(name, shape, 10, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_dropout_comes_before_the_relu() -> None:
    model = build_model("mlp", (6,), 3, 0)
    x, mask = torch.randn(5, 6), 2.0 * (torch.rand(5, 64) < 0.5)
    expected = model.hidden((model.input(x) * mask).relu())
    assert torch.equal(model(x, mask), expected)
    assert torch.equal(model(x), model.hidden(model.input(x).relu()))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"does not take records of shape \(7,\)"):
        check_model(nn.Linear(6, 3), (7,), 3)
    with pytest.raises(UsageError, match="expected 4 logits"):
        check_model(nn.Linear(6, 3), (6,), 4)
    with pytest.raises(UsageError, match="keeps running statistics"):
        check_model(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), (6,), 3)


def test_the_stacked_form_is_the_same_network() -> None:
    models = [build_model("mlp", (6,), 3, seed) for seed in range(4)]
    weights = {
        name: torch.stack([dict(m.named_parameters())[name] for m in models])
        for name in ("input.weight", "hidden.weight")
    }
    x, mask = torch.randn(4, 5, 6), 2.0 * (torch.rand(4, 5, 64) < 0.5)
    for given in (None, mask):
        expected = torch.stack([m(x[k], None if given is None else given[k]) for k, m in enumerate(models)])
        assert torch.allclose(models[0].forward_stacked(weights, x, given), expected, atol=1e-6)

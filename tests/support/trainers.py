"""Models, contexts and start weights with which tests compare trainers."""

import torch
from torch import Tensor, nn

from fedceo.models import build_model, parameters_of
from fedceo.tensors.weights import Weights
from fedceo.training.context import TrainingContext
from fedceo.training.schedule import Schedule
from fedceo.training.work import RecordPrivacy
from tests.support.small_federation import SmallConv, federation

RECORD = RecordPrivacy(clip=0.5, noise_multiplier=1.0)


def context(model: nn.Module, dtype: torch.dtype = torch.float32) -> TrainingContext:
    return TrainingContext(model.to(dtype), federation(), Schedule(5), torch.device("cpu"), dtype)


class Normed(nn.Module):
    """No chain of layers that blocks know: goes through torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.norm(self.conv(x))).flatten(1))


def models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"mlp": build_model("mlp", (1, 4, 4), 3, seed=0), "conv": SmallConv(), "generic": Normed()}


def starts(model: nn.Module, clients: int) -> dict[str, torch.Tensor]:
    """Different for every client, so that a mix-up shows."""
    torch.manual_seed(3)
    return {name: w + 0.01 * torch.randn(clients, *w.shape, dtype=w.dtype) for name, w in parameters_of(model).items()}


def difference(a: Weights, b: Weights) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)

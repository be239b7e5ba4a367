"""Models, records and distances for tests of training on a GPU."""

import torch
from torch import Tensor, nn

from fedceo.models import build_model, parameters_of
from fedceo.tensors.weights import Weights
from fedceo.training.context import TrainingContext
from fedceo.training.schedule import Schedule
from fedceo.training.work import RecordPrivacy
from tests.support.small_federation import federation

RECORD = RecordPrivacy(clip=0.5, noise_multiplier=1.0)
SIZES = (90, 41, 130, 7)


class Normed(nn.Module):
    """Goes through torch.func; `asks` makes it wait for the host, which no captured step can."""

    def __init__(self, asks: bool = False) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 4, 5, stride=3), nn.GroupNorm(2, 4), nn.Linear(400, 5)
        self.asks = asks

    def forward(self, x: Tensor) -> Tensor:
        if self.asks:
            x = x.cpu().to(self.out.weight.device)
        return self.out(torch.tanh(self.norm(self.conv(x))).flatten(1))


def make(which: str) -> nn.Module:
    torch.manual_seed(0)
    special = {"generic": Normed, "asking": lambda: Normed(asks=True)}
    return special[which]() if which in special else build_model(which, (3, 32, 32), 5, seed=0)


def context(model: nn.Module, randomness: str = "seeded", bad: bool = False) -> TrainingContext:
    data = federation(SIZES, (3, 32, 32), classes=5)
    if bad:
        data.x[data.train[0][:5]] = torch.nan
    return TrainingContext(model.cuda(), data, Schedule(5, randomness), torch.device("cuda"), torch.float32)


def starts(model: nn.Module, clients: int) -> dict[str, Tensor]:
    torch.manual_seed(3)
    return {name: w.cuda() + 0.01 * torch.randn(clients, *w.shape).cuda() for name, w in parameters_of(model).items()}


def apart(a: Weights, b: Weights, begin: Weights) -> float:
    """How far a and b are apart, beside how far a is from the beginning."""
    between, moved = (torch.cat([(a[n] - other[n]).flatten().double() for n in a]).norm() for other in (b, begin))
    return float(between / moved)


def near(which: str) -> float:
    """How far apart two ways of training may end in float32.

    No two ways of summing agree on which of two values is larger when they are equal to seven digits; a maximum or a
    ReLU that falls the other way moves a few filters, for the loop in float32 too. Elsewhere rounding is all there is.
    """
    return 0.05 if which == "lenet5" else 1e-5

"""Models whose first layer is linear, on records of more features than any client has records."""

from typing import Any

import pytest
import torch
from torch import nn

from fedceo.data import Federation
from fedceo.training.batched.cohort import Call
from fedceo.training.context import TrainingContext
from fedceo.training.schedule import Schedule
from tests.support.small_federation import SIZES, federation

FEATURES = 24


def linear(bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 3, bias)).double()


class Deep(nn.Module):
    """A layer with dropout and ReLU, and two more."""

    mask_shape = (5,)
    keep = 0.5

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second, self.last = nn.Linear(FEATURES, 5, bias), nn.Linear(5, 4), nn.Linear(4, 3, bias)
        self.double()

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        h = self.first(x.flatten(1))
        if mask is not None:
            h = h * mask
        found: torch.Tensor = self.last(self.second(h.relu()).relu())
        return found


def context(model: nn.Module, data: Federation, dtype: torch.dtype = torch.float64) -> TrainingContext:
    return TrainingContext(model.to(dtype), data, Schedule(5), torch.device("cpu"), dtype)


def data(sizes: tuple[int, ...] = SIZES) -> Federation:
    return federation(sizes, shape=(2, 3, 4))


def watched(patch: pytest.MonkeyPatch, kind: type, method: str) -> list[int]:
    """The numbers of clients of the calls that a method is given from now on."""
    seen: list[int] = []
    really = getattr(kind, method)

    def watching(self: Any, call: Call, *rest: Any) -> Any:
        seen.append(len(call.clients))
        return really(self, call, *rest)

    patch.setattr(kind, method, watching)
    return seen

"""A model of one's own that cannot be trained is refused in one line, before anything is written."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedceo
from fedceo.errors import UsageError
from tests.simulation.small_runs import changed


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRU(8, 5, batch_first=True), nn.Linear(5, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cell(x.flatten(1).view(len(x), 8, 8))[0][:, -1])


class Pair(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x.flatten(1)), x


class Counting(nn.Linear):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return super().forward(x.flatten(1))


class MixesRecords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x.flatten(1)))


@pytest.mark.parametrize(
    "model, mechanism, words",
    [
        (Recurrent(), "record", "Recurrent cannot be trained by the"),
        (Pair(64, 10), "distributed", "gives a tuple, expected a tensor of 10 logits"),
        (Counting(), "distributed", "its forward pass changes seen"),
        (MixesRecords(), "record", "model: "),
    ],
)
def test_refused_before_anything_is_written(model: nn.Module, mechanism: str, words: str, tmp_path: Path) -> None:
    table = changed(privacy={"mechanism": mechanism}, train={"rounds": 1}) | {"method": {"name": "fedavg"}}
    with pytest.raises(UsageError, match=words) as refusal:
        fedceo.run(table, model=model, out=tmp_path / "run")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_what_can_be_trained_is_trained_as_if_nothing_had_been_tried() -> None:
    table = changed(train={"rounds": 1}) | {"method": {"name": "fedavg"}}
    torch.manual_seed(0)
    model = Recurrent()
    one, other = (fedceo.run(table, model=model).weights for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)

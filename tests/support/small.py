"""A small federation and small models that tests share."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedceo.data import Federation


def module_here(name: str, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The text as a module of the user's own in the working directory, under a name that no other test has."""
    unlike_others = f"{name}_{folder.name.replace('-', '_')}"
    (folder / f"{unlike_others}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return unlike_others


SIZES = (13, 8, 21, 5)


def federation(sizes: tuple[int, ...] = SIZES, shape: tuple[int, ...] = (1, 4, 4), classes: int = 3) -> Federation:
    """Clients of unequal sizes whose labels can be learnt."""
    rng = torch.Generator().manual_seed(1)
    total = sum(sizes)
    y = torch.randint(classes, (total + 60,), generator=rng)
    centres = torch.randn(classes, *shape, generator=rng)
    x = centres[y] + 0.5 * torch.randn(total + 60, *shape, generator=rng)
    train = list(torch.split(torch.arange(total), list(sizes)))
    return Federation(
        name="small",
        x=x[: total + 20],
        y=y[: total + 20],
        train=train,
        validation=torch.arange(total, total + 20),
        local_test=[torch.empty(0, dtype=torch.int64) for _ in sizes],
        test_x=x[total + 20 :],
        test_y=y[total + 20 :],
        classes=classes,
    )


class SmallConv(nn.Module):
    """A convolution and a linear layer, both with biases."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 2)
        self.fc = nn.Linear(36, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).relu().flatten(1))

"""A small federation of unequal clients, and a small model for it."""

import torch
from torch import Tensor, nn

from fedceo.data import Federation

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

"""Logistic regression, the smallest model of the room."""

from math import prod

from torch import Tensor, nn

from fedceo.models.registry import MODELS


@MODELS.register("logistic", "logistic regression")
class Logistic(nn.Module):
    """A network of flatten -> linear (classes)."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(prod(shape), classes)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, *shape)."""
        return self.linear(x.flatten(1))

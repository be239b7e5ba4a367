"""The paper's two-layer perceptron (appendix C.1): no biases, dropout before the ReLU."""

from math import prod

from torch import Tensor, nn

from fedceo.models.registry import MODELS

UNITS = 64


@MODELS.register("mlp", "two layers of 64 units without biases, dropout before ReLU (the paper's MLP)")
class MLP(nn.Module):
    """A network of flatten -> linear (64) -> dropout 0.5 -> ReLU -> linear (classes)."""

    mask_shape = (UNITS,)
    keep = 0.5

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.input = nn.Linear(prod(shape), UNITS, bias=False)
        self.hidden = nn.Linear(UNITS, classes, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x: (B, *shape); mask: (B, 64) of 0 and 1 / keep."""
        h = self.input(x.flatten(1))
        if mask is not None:
            h = h * mask
        return self.hidden(h.relu())

"""Gradients that are left as products of matrices, for a step that multiplies on the way to the weights."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True)
class Product:
    """The gradient of a linear layer: the sum over a client's records of g x^T, and of g for the bias.

    Attributes:
        weight, bias: the names of the layer's parameters.
        g: (K, B, out) gradients with respect to the layer's output.
        x: (K, B, in) the layer's input; with `rows` (n, in) all records.
        counts: (K,) how many of the B slots hold records.
        rows: (K, B) the rows of x that are the layer's input, if they are not copied.
    """

    weight: str
    bias: str | None
    g: Tensor
    x: Tensor
    counts: Tensor
    rows: Tensor | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.weight, self.bias) if self.bias else (self.weight,)


@runtime_checkable
class AsProduct(Protocol):
    """A pass of a block whose gradient can be left as a product."""

    def product(self, counts: Tensor) -> Product:
        """The sum of gradients that `sum_gradients` would write without factors."""

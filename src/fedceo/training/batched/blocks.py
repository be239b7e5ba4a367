"""A model as a chain of blocks, each run for K clients at once with a backward pass written out.

A block is a layer with the operations that follow it: a linear layer with its dropout mask and ReLU, a convolution with
its ReLU and max-pooling. Running a block gives a `Pass`, which then gives the gradient with respect to its input, every
record's squared gradient norm, and the sum of the records' gradients times given factors. A linear layer's gradient for
one record is the outer product g a^T of the output's gradient and the input, so its norm is |g| |a| and the weighted
sum over records is one product of matrices: no record's gradient is ever formed (Goodfellow 2015; Bu et al. 2023).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.batched.cohort import Batch


class Pass(Protocol):
    """A block that was run on (K, B, ...) inputs; `y` is its output."""

    y: Tensor

    def backward(self, dy: Tensor, needs_dx: bool) -> Tensor | None:
        """Take the gradient with respect to the output; return that with respect to the input where it is needed."""

    def squared_norms(self) -> Tensor:
        """(K, B) squared norm of each record's gradient over the block's parameters; after `backward`."""

    def sum_gradients(self, factors: Tensor | None, sums: Weights) -> None:
        """Write the sum over records of gradient times factor, (K, B); without factors each counts once."""


class Block(Protocol):
    """One block of a chain."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its parameters."""

    def run(self, weights: Weights, x: Tensor, batch: Batch) -> Pass:
        """Run on x, (K, B, ...), the output of the block before; weights: name -> (K, ...)."""


@runtime_checkable
class Descends(Protocol):
    """A pass that takes its block's step on the way back."""

    def descend(self, dy: Tensor, needs_dx: bool, rate: float) -> Tensor | None:
        """Like `backward`, with a step of plain SGD."""


@runtime_checkable
class Receives(Protocol):
    """A pass that makes its own gradients from what `receive` leaves, beside its backward pass if need be."""

    def receive(self, dy: Tensor) -> None:
        """Take the gradient with respect to the output; `backward` follows."""


@runtime_checkable
class Stores(Protocol):
    """A first block that reads records faster in an order and precision of its own."""

    def stored(self, inputs: Tensor) -> Tensor:
        """(n, *shape) records as it reads them fastest."""


@runtime_checkable
class ReadsInPlace(Protocol):
    """A first block that can read records where all of them lie, so that no batch is copied."""

    def reads_in_place(self, shapes: Mapping[str, torch.Size]) -> bool:
        """Whether it does so with parameters of these shapes."""


CACHED = 2**21
"""Bytes of a weight that a core's cache holds between the two products that read it on the way back."""


@dataclass(frozen=True)
class Linear:
    """linear -> [dropout mask] -> [ReLU]."""

    weight: str
    bias: str | None
    masked: bool
    relu: bool

    @property
    def names(self) -> tuple[str, ...]:
        return (self.weight, self.bias) if self.bias else (self.weight,)

    def run(self, weights: Weights, x: Tensor, batch: Batch) -> "LinearPass":
        mask = batch.mask if self.masked else None
        squares = batch.squares if x is batch.x else None
        return LinearPass(self, weights[self.weight], weights[self.bias] if self.bias else None, x, mask, squares)


class LinearPass:
    """y = x W^T + bias, masked and cut off at zero; x is (K, B, in), y (K, B, out)."""

    def __init__(
        self,
        block: Linear,
        weight: Tensor,
        bias: Tensor | None,
        x: Tensor,
        mask: Tensor | None,
        squares: Tensor | None = None,
    ) -> None:
        """squares: (K, B) the squared norms of x, which need not be read for them again where they are known."""
        self.squares = squares
        self.block, self.weight, self.bias = block, weight, bias
        self.shape, self.x = x.shape, x if x.ndim == 3 else x.flatten(2)
        # a CPU multiplies by few columns, as those of ten logits or ten records are, at half its speed or less
        if weight.shape[1] < x.shape[1]:
            y = torch.bmm(weight, self.x.mT) if bias is None else torch.baddbmm(bias[..., None], weight, self.x.mT)
            y = y.mT
        else:
            y = torch.bmm(self.x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], self.x, weight.mT)
        self.mask = mask
        if mask is not None:
            y = y.mul_(mask)
        self.y = y.relu_() if block.relu else y

    def backward(self, dy: Tensor, needs_dx: bool) -> Tensor | None:
        if self.block.relu:
            dy = cut_off(dy, self.y)
        self.g = dy if self.mask is None else dy.mul_(self.mask)
        if not needs_dx:
            return None
        dx = torch.bmm(self.g, self.weight)
        return dx if len(self.shape) == 3 else dx.view(self.shape)

    def descend(self, dy: Tensor, needs_dx: bool, rate: float) -> Tensor | None:
        """Like `backward`, with a step of plain SGD: its product is added to the weights and never written down."""
        if not needs_dx or self.weight[0].nbytes <= CACHED:
            dx = self.backward(dy, needs_dx)
            torch.baddbmm(self.weight, self.g.mT, self.x, alpha=-rate, out=self.weight)
        else:
            self.backward(dy, needs_dx=False)
            dx = torch.empty_like(self.x)
            pieces = -(-self.weight[0].nbytes // CACHED)
            for w, g, x, d in zip(*(each.unbind() for each in (self.weight, self.g, self.x, dx)), strict=True):
                parts = (each.chunk(pieces, 1) for each in (w, x, d))
                for some_w, some_x, some_d in zip(*parts, strict=True):
                    torch.mm(g, some_w, out=some_d)
                    some_w.addmm_(g.T, some_x, alpha=-rate)
            dx = dx.view(self.shape)
        if self.bias is not None:
            self.bias.sub_(self.g.sum(1), alpha=rate)
        return dx

    def squared_norms(self) -> Tensor:
        inputs = self.x.square().sum(2) if self.squares is None else self.squares
        return self.g.square().sum(2) * (inputs if self.block.bias is None else inputs + 1)

    def sum_gradients(self, factors: Tensor | None, sums: Weights) -> None:
        g, x = self.g, self.x
        if factors is not None:
            g, x = scaled(g, x, factors, self.squares)
        torch.bmm(g.mT, x, out=sums[self.block.weight])
        if self.block.bias:
            torch.sum(g, 1, out=sums[self.block.bias])


def cut_off(dy: Tensor, y: Tensor) -> Tensor:
    """The gradient before a ReLU that gave y, in the place of that after it, which nobody asks for again."""
    return torch.ops.aten.threshold_backward.grad_input(dy, y, 0, grad_input=dy)


def scaled(g: Tensor, x: Tensor, factors: Tensor, squares: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The records' rows of g times their factors, and x with zeros where the factor is 0, since 0 * NaN is NaN.

    squares: the squared norms of x, if they are known: where these are finite, so is x.
    """
    counted = factors[..., None] > 0
    g = torch.where(counted, g * factors[..., None], 0.0)
    read = x if squares is None else squares
    if g.device.type == "cpu" and bool(torch.isfinite(read.sum())):  # asking is cheap here, copying x is not
        return g, x
    return g, torch.where(counted, x, 0.0)


SLACK = 8
"""Rounding units of the sum of a record's |g_t| |u_t| that are added to its norm: no rounding lets it pass the clip."""


def squares_of_sums(inputs: Tensor, outputs: Tensor, unit: float) -> Tensor:
    """(P,) squared norms of sum_t g_t u_t^T, with room for the rounding of their sums.

    Args:
        inputs, outputs: (P, T, T) inner products of the u_t, and of the g_t, in float64.
        unit: of rounding, in the precision that the gradients are summed in.
    """
    norms = (inputs * outputs).sum((1, 2)).clamp_min(0).sqrt()
    sizes = (inputs.diagonal(dim1=1, dim2=2) * outputs.diagonal(dim1=1, dim2=2)).sqrt().sum(1)
    return (norms + SLACK * unit * sizes).square()

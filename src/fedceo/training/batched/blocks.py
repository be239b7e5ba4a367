"""A model as a chain of blocks, each run for K clients at once with a backward pass written out.

A block is a layer with the operations that follow it: a linear layer with its dropout mask and ReLU, a convolution with
its ReLU and max-pooling. Running a block gives a `Pass`, which then gives the gradient with respect to its input, every
record's squared gradient norm, and the sum of the records' gradients times given factors. A linear layer's gradient for
one record is the outer product g a^T of the output's gradient and the input, so its norm is |g| |a| and the weighted
sum over records is one product of matrices: no record's gradient is ever formed (Goodfellow 2015; Bu et al. 2023). A
convolution's is a sum of such products over positions; it is formed unless inner products of the positions are cheaper.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
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
class Receives(Protocol):
    """A pass that makes its own gradients from what `receive` leaves, beside its backward pass if need be."""

    def receive(self, dy: Tensor) -> None:
        """Take the gradient with respect to the output; `backward` follows."""


@runtime_checkable
class Stores(Protocol):
    """A first block that reads records faster in an order and precision of its own."""

    def stored(self, inputs: Tensor) -> Tensor:
        """(n, *shape) records as it reads them fastest."""


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
        return LinearPass(self, weights[self.weight], weights[self.bias] if self.bias else None, x, mask)


class LinearPass:
    """y = x W^T + bias, masked and cut off at zero; x is (K, B, in), y (K, B, out)."""

    def __init__(self, block: Linear, weight: Tensor, bias: Tensor | None, x: Tensor, mask: Tensor | None) -> None:
        self.block, self.weight, self.bias = block, weight, bias
        self.shape, self.x = x.shape, x.flatten(2)
        # W x^T, not x W^T: a CPU multiplies by few columns, as those of ten logits are, at a quarter of its speed
        y = torch.bmm(weight, self.x.mT) if bias is None else torch.baddbmm(bias[..., None], weight, self.x.mT)
        y = y.mT
        self.mask = mask
        if mask is not None:
            y = y.mul_(mask)
        self.y = y.relu_() if block.relu else y

    def backward(self, dy: Tensor, needs_dx: bool) -> Tensor | None:
        if self.block.relu:
            dy = torch.ops.aten.threshold_backward(dy, self.y, 0)
        self.g = dy if self.mask is None else dy * self.mask
        return torch.bmm(self.g, self.weight).view(self.shape) if needs_dx else None

    def squared_norms(self) -> Tensor:
        inputs = self.x.square().sum(2)
        return self.g.square().sum(2) * (inputs if self.block.bias is None else inputs + 1)

    def descend(self, rate: float) -> None:
        """One step of plain SGD: the gradient is never written down, its product is added to the weights."""
        torch.baddbmm(self.weight, self.g.mT, self.x, alpha=-rate, out=self.weight)
        if self.bias is not None:
            self.bias.sub_(self.g.sum(1), alpha=rate)

    def sum_gradients(self, factors: Tensor | None, sums: Weights) -> None:
        g, x = self.g, self.x
        if factors is not None:
            g, x = scaled(g, x, factors)
        torch.bmm(g.mT, x, out=sums[self.block.weight])
        if self.block.bias:
            torch.sum(g, 1, out=sums[self.block.bias])


def weighted_sum(factors: Tensor, each: Tensor) -> Tensor:
    """(K, n) sums over records of (K, B) factors times (K, B, n) gradients, which may be NaN where the factor is 0."""
    if each.device.type == "cpu":  # asking is cheap here, copying is not
        found = torch.bmm(factors[:, None], each)[:, 0]
        if bool(torch.isfinite(found.sum())):
            return found
    return torch.bmm(factors[:, None], torch.where(factors[..., None] > 0, each, 0.0))[:, 0]


def scaled(g: Tensor, x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """The records' rows of g times their factors, and x with zeros where the factor is 0, since 0 * NaN is NaN."""
    counted = factors[..., None] > 0
    g = torch.where(counted, g * factors[..., None], 0.0)
    if g.device.type == "cpu" and bool(torch.isfinite(x.sum())):  # asking is cheap here, copying x is not
        return g, x
    return g, torch.where(counted, x, 0.0)


SLACK = 8
"""Rounding units of the sum of a record's |g_t| |u_t| that are added to its norm: no rounding lets it pass the clip."""
AT_ONCE = 16
"""Records whose patches are taken out of their images at a time, so that these stay in a core's cache."""
CHEAPER = 4
"""How many times fewer products make up for a second pass over the activations."""


def squares_by_position(x: Tensor, g: Tensor, block: "Conv") -> Tensor:
    """(P,) squared norms of records' gradients sum_t g_t u_t^T, none of which is formed.

    |sum_t g_t u_t^T|^2 = sum_st (u_s . u_t) (g_s . g_t) over positions. A patch's inner product with another is that of
    their pixels, summed over the kernel's taps. Terms may cancel: products are taken in float64, and what rounding
    could add where the gradients are summed later is added to the norm.

    Args:
        x: (P, channels, height, width) inputs.
        g: (P, out, rows, columns) gradients with respect to the output; pooling may have left a margin out.
    """
    unit = torch.finfo(torch.promote_types(g.dtype, torch.float32)).eps  # sums are never in less
    rows, columns = g.shape[2:]
    x = F.pad(x, [p for p in reversed(block.padding) for _ in range(2)]).double()
    width, pixels = x.shape[3], x.flatten(2)
    count, g = pixels.shape[2], g.flatten(2).double()
    down, right = block.stride
    each = torch.bmm(pixels.mT, pixels).as_strided(
        (len(x), *block.side, rows, columns, rows, columns),
        (count**2, width * (count + 1), count + 1, down * width * count, right * count, down * width, right),
    )
    inputs = each.sum((1, 2)).view(len(x), rows * columns, rows * columns) + float(block.bias is not None)
    return squares_of_sums(inputs, torch.bmm(g.mT, g), unit)


def squares_of_sums(inputs: Tensor, outputs: Tensor, unit: float) -> Tensor:
    """(P,) squared norms of sum_t g_t u_t^T, with room for the rounding of their sums.

    Args:
        inputs, outputs: (P, T, T) inner products of the u_t, and of the g_t, in float64.
        unit: of rounding, in the precision that the gradients are summed in.
    """
    norms = (inputs * outputs).sum((1, 2)).clamp_min(0).sqrt()
    sizes = (inputs.diagonal(dim1=1, dim2=2) * outputs.diagonal(dim1=1, dim2=2)).sqrt().sum(1)
    return (norms + SLACK * unit * sizes).square()


@dataclass(frozen=True)
class Conv:
    """conv -> [ReLU] -> [max-pool over squares of `pool`], for any stride and zero padding."""

    weight: str
    bias: str | None
    side: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    relu: bool
    pool: int

    @property
    def names(self) -> tuple[str, ...]:
        return (self.weight, self.bias) if self.bias else (self.weight,)

    def forms_gradients(self, x: Sequence[int], y: Sequence[int]) -> bool:
        """Whether forming each record's gradient is cheaper than inner products of positions.

        Args:
            x, y: (channels, height, width) of the input and of the output before pooling.
        """
        pixels = (x[1] + 2 * self.padding[0]) * (x[2] + 2 * self.padding[1])
        positions, taps = y[1] * y[2], self.side[0] * self.side[1]
        by_position = pixels**2 * x[0] + positions**2 * (taps + y[0])
        return CHEAPER * by_position >= positions * taps * x[0] * y[0]

    def run(self, weights: Weights, x: Tensor, batch: Batch) -> "ConvPass":
        return ConvPass(self, weights[self.weight], weights[self.bias] if self.bias else None, x)


class ConvPass:
    """Convolutions client by client through torch's own, which on a CPU beat one batched product of all patches.

    Images lie channels last, as these convolutions are fastest; records of all clients follow each other, (K * B, ...).
    """

    def __init__(self, block: Conv, weight: Tensor, bias: Tensor | None, x: Tensor) -> None:
        self.block, self.weight, self.bias, self.shape = block, weight, bias, x.shape
        self.x = channels_last(x.flatten(0, 1))
        biases = [None] * len(weight) if bias is None else list(bias)
        each = zip(self.x.chunk(len(weight)), weight, biases, strict=True)
        z = joined([F.conv2d(x, w, b, block.stride, block.padding) for x, w, b in each])
        self.forms = block.forms_gradients(self.x.shape[1:], z.shape[1:])
        y = self.z = z
        if block.pool > 1:
            y, self.winners = F.max_pool2d(z, block.pool, return_indices=True)
        if block.relu:  # it commutes with pooling, after which there is less of it to do
            y.relu_()
        self.y = y.unflatten(0, x.shape[:2])

    def backward(self, dy: Tensor, needs_dx: bool) -> Tensor | None:
        block, pool = self.block, [self.block.pool] * 2
        dy = channels_last(dy.view(self.y.shape).flatten(0, 1))
        if block.relu:
            dy = torch.ops.aten.threshold_backward(dy, self.y.flatten(0, 1), 0)
        if block.pool > 1:
            dy = torch.ops.aten.max_pool2d_with_indices_backward(
                dy, self.z, pool, pool, [0, 0], [1, 1], False, self.winners
            )
        self.g = dy
        if not needs_dx:
            return None
        return joined([found[0] for found in self._backward([True, False, False])]).view(self.shape)

    def squared_norms(self) -> Tensor:
        if not self.forms:
            return squares_by_position(self.x, self.g, self.block).to(self.g.dtype).view(self.shape[:2])
        g = self.g.permute(0, 2, 3, 1).flatten(1, 2)  # (P, positions, out)
        each = g.new_empty(len(g), g.shape[2], prod(self.block.side) * self.x.shape[1])
        for first in range(0, len(g), AT_ONCE):
            here = slice(first, first + AT_ONCE)
            torch.bmm(g[here].mT, patches(self.x[here], self.block, self.g.shape[2:]), out=each[here])
        self.each = each.view(*self.shape[:2], -1)
        squares = torch.linalg.vector_norm(self.each, dim=2).square()
        if self.block.bias:
            self.each_bias = g.sum(1).view(*self.shape[:2], -1)
            squares += self.each_bias.square().sum(2)
        return squares

    def sum_gradients(self, factors: Tensor | None, sums: Weights) -> None:
        weight, bias = self.block.weight, self.block.bias
        if factors is not None and self.forms:
            total = weighted_sum(factors, self.each)
            clients, out, channels = sums[weight].shape[:3]
            sums[weight].copy_(total.view(clients, out, *self.block.side, channels).permute(0, 1, 4, 2, 3))
            if bias:
                sums[bias].copy_(weighted_sum(factors, self.each_bias))
            return
        if factors is not None:
            g, x = scaled(self.g.flatten(1), self.x.flatten(1), factors.flatten())
            self.g, self.x = g.view_as(self.g), x.view_as(self.x)
        for k, (_, dw, db) in enumerate(self._backward([False, True, bias is not None])):
            sums[weight][k] = dw
            if bias:
                sums[bias][k] = db

    def descend(self, rate: float) -> None:
        """One step of plain SGD."""
        for k, (_, dw, db) in enumerate(self._backward([False, True, self.bias is not None])):
            self.weight[k].sub_(dw, alpha=rate)
            if self.bias is not None:
                self.bias[k].sub_(db, alpha=rate)

    def _backward(self, wanted: list[bool]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Gradients of each client's input, weight and bias, of which those not wanted mean nothing."""
        clients, stride, padding = len(self.weight), list(self.block.stride), list(self.block.padding)
        return [
            torch.ops.aten.convolution_backward(g, x, w, [len(w)], stride, padding, [1, 1], False, [0, 0], 1, wanted)
            for g, x, w in zip(self.g.chunk(clients), self.x.chunk(clients), self.weight, strict=True)
        ]


def patches(x: Tensor, block: Conv, size: Sequence[int]) -> Tensor:
    """(P, positions, taps * channels) pixels under the kernel at each position, of (P, channels, height, width) images.

    Args:
        x: images with channels last in memory.
        size: rows and columns of positions; pooling may have left a margin out.
    """
    x = channels_last(F.pad(x, [p for p in reversed(block.padding) for _ in range(2)])).permute(0, 2, 3, 1)
    each, row, column, channel = x.stride()
    down, right = block.stride
    view = x.as_strided(
        (len(x), *size, *block.side, x.shape[3]), (each, down * row, right * column, row, column, channel)
    )
    return view.reshape(len(x), size[0] * size[1], -1)


def channels_last(images: Tensor) -> Tensor:
    """The same (P, channels, height, width) images, with channels last in memory.

    Where there is one channel torch cannot tell the two orders apart unless the strides say which is meant, and its
    operations on the other order take up to ten times as long.
    """
    images = images.contiguous(memory_format=torch.channels_last)
    _, channels, height, width = images.shape
    return images.as_strided(images.shape, (height * width * channels, 1, width * channels, channels))


def joined(parts: list[Tensor]) -> Tensor:
    """The parts one after another; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)

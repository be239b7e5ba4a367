"""Convolutions as blocks of a chain, for K clients at once.

A record's gradient is a sum of outer products over positions; it is formed unless inner products of the positions are
cheaper.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.batched.blocks import cut_off, scaled, squares_of_sums
from fedceo.training.batched.cohort import Batch

AT_ONCE = 16
"""Records whose patches are taken out of their images at a time, so that these stay in a core's cache."""
CHEAPER = 4
"""How many times fewer products make up for a second pass over the activations."""


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
        biases = [None] * len(weight) if bias is None else bias.unbind()
        each = zip(self.x.chunk(len(weight)), weight.unbind(), biases, strict=True)
        z = joined([F.conv2d(x, w, b, block.stride, block.padding) for x, w, b in each])
        self.forms = block.forms_gradients(self.x.shape[1:], z.shape[1:])
        y = self.z = z
        if block.pool > 1:
            y, self.winners = F.max_pool2d(z, block.pool, return_indices=True)
        if block.relu:  # it commutes with pooling, after which there is less of it to do
            y.relu_()
        self.y = y.unflatten(0, x.shape[:2])

    def backward(self, dy: Tensor, needs_dx: bool) -> Tensor | None:
        self._find_g(dy)
        if not needs_dx:
            return None
        return joined([found[0] for found in self._backward([True, False, False])]).view(self.shape)

    def descend(self, dy: Tensor, needs_dx: bool, rate: float) -> Tensor | None:
        """Like `backward`, with a step of plain SGD."""
        self._find_g(dy)
        # both gradients by one call, which brings its operands into the cache once
        found = self._backward([needs_dx, True, False])
        for weight, (_, dw, _) in zip(self.weight.unbind(), found, strict=True):
            weight.sub_(dw, alpha=rate)
        if self.bias is not None:
            g = self.g.permute(0, 2, 3, 1).reshape(len(self.weight), -1, self.g.shape[1])
            self.bias.sub_(g.sum(1), alpha=rate)
        return joined([dx for dx, _, _ in found]).view(self.shape) if needs_dx else None

    def _find_g(self, dy: Tensor) -> None:
        """Take the gradient back through pooling and ReLU."""
        block, pool = self.block, [self.block.pool] * 2
        dy = channels_last(dy.view(self.y.shape).flatten(0, 1))
        if block.relu:
            dy = cut_off(dy, self.y.flatten(0, 1))
        if block.pool > 1:
            dy = torch.ops.aten.max_pool2d_with_indices_backward(
                dy, self.z, pool, pool, [0, 0], [1, 1], False, self.winners
            )
        self.g = dy

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

    def _backward(self, wanted: list[bool]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Gradients of each client's input, weight and bias, of which those not wanted mean nothing."""
        clients, stride, padding = len(self.weight), list(self.block.stride), list(self.block.padding)
        return [
            torch.ops.aten.convolution_backward(g, x, w, [len(w)], stride, padding, [1, 1], False, [0, 0], 1, wanted)
            for g, x, w in zip(self.g.chunk(clients), self.x.chunk(clients), self.weight.unbind(), strict=True)
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


def weighted_sum(factors: Tensor, each: Tensor) -> Tensor:
    """(K, n) sums over records of (K, B) factors times (K, B, n) gradients, which may be NaN where the factor is 0."""
    if each.device.type == "cpu":  # asking is cheap here, copying is not
        found = torch.bmm(factors[:, None], each)[:, 0]
        if bool(torch.isfinite(found.sum())):
            return found
    return torch.bmm(factors[:, None], torch.where(factors[..., None] > 0, each, 0.0))[:, 0]


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

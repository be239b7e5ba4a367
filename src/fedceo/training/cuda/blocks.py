"""The blocks of a chain on kernels: which convolutions have which, and linear layers.

Where torch's own switch allows TF32, torch.set_float32_matmul_precision("high"), linear layers multiply in it, and
convolutions keep images, weights and gradients in float16 (convolution.py). Otherwise products are as exact as float32:
three TF32 products each inside a convolution, plain float32 in cuBLAS.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import triton
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.batched.blocks import Block, Conv, Linear, Pass
from fedceo.training.batched.cohort import Batch
from fedceo.training.batched.products import Product
from fedceo.training.cuda import row_kernels
from fedceo.training.cuda.convolution import FusedConvPass, kept_in
from fedceo.training.cuda.first_convolution import FirstConvPass, as_blocks, fits

MOST_POOLED = 128
"""Pooled values that an int8 can tell apart."""


def fuse(blocks: Sequence[Block], shape: tuple[int, ...] | None) -> tuple[Block, ...]:
    """The same chain, on kernels where there are any for a block; shape: of records that the first block takes."""

    def fused(block: Block, first: bool) -> Block:
        if isinstance(block, Linear):
            return FusedLinear(block)
        if not isinstance(block, Conv):
            return block
        square = all(one == other for one, other in (block.stride, block.padding, block.side))
        small = block.pool**2 <= MOST_POOLED
        if not square or not small or not (first or block.stride[0] == 1):
            return block
        return FusedConv(block, shape if first else None)

    found = [fused(block, first=i == 0) for i, block in enumerate(blocks)]
    for i, (before, after) in enumerate(pairwise(found)):
        if isinstance(before, FusedConv) and isinstance(after, FusedConv):
            found[i] = replace(before, feeds_conv=True)
    return tuple(found)


@dataclass(frozen=True)
class FusedConv:
    """A convolution with its ReLU and pooling: two kernels forward, up to three backward.

    Attributes:
        shape: (channels, height, width) of its images, where they are records, which need no gradient.
        feeds_conv: whether the next block is such a convolution too, which takes images as this one keeps them.
    """

    block: Conv
    shape: tuple[int, ...] | None = None
    feeds_conv: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return self.block.names

    @property
    def _takes_blocks(self) -> bool:
        return self.shape is not None and kept_in() == torch.float16 and fits(self.block, self.shape[0])

    def stored(self, inputs: Tensor) -> Tensor:
        """(n, channels, height, width) records as `run` reads them fastest."""
        return as_blocks(inputs, self.block) if self._takes_blocks else inputs

    def run(self, weights: Weights, x: Tensor, batch: Batch) -> Pass:
        feeds = kept_in() if self.feeds_conv else torch.float32
        if not self._takes_blocks:
            return FusedConvPass(self.block, weights, x, batch.counts, feeds)
        assert self.shape is not None
        if x.dtype != torch.float16:
            x = self.stored(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return FirstConvPass(self.block, weights, x, batch.counts, self.shape[1:], feeds)


@dataclass(frozen=True)
class FusedLinear:
    """A linear layer whose bias, mask and ReLU are one kernel forward and one backward."""

    block: Linear

    @property
    def names(self) -> tuple[str, ...]:
        return self.block.names

    def run(self, weights: Weights, x: Tensor, batch: Batch) -> "FusedLinearPass":
        return FusedLinearPass(self.block, weights, x, batch.mask if self.block.masked else None)


class FusedLinearPass:
    """x: (K, B, in); y: (K, B, out). `backward` overwrites the gradient that it is given."""

    def __init__(self, block: Linear, weights: Weights, x: Tensor, mask: Tensor | None) -> None:
        self.block, self.weight = block, weights[block.weight]
        self.shape, self.x = x.shape, x.flatten(2)
        self.y = torch.bmm(self.x, self.weight.mT)
        self.mask = mask
        clients, slots, size = self.y.shape
        if block.bias or block.relu or self.mask is not None:
            bias = weights[block.bias] if block.bias else self.y
            row_kernels.activate_kernel[(clients * slots, triton.cdiv(size, 512))](
                self.y, bias, self._mask, slots, size, bias.stride(0),
                BIAS=block.bias is not None, MASK=self.mask is not None, RELU=block.relu, TILE=512,
            )  # fmt: skip

    @property
    def _mask(self) -> Tensor:
        """The mask, or a pointer that the kernels do not read."""
        return self.y if self.mask is None else self.mask

    def backward(self, dy: Tensor, needs_dx: bool) -> Tensor | None:
        clients, slots, size = self.y.shape
        self.g, self.squares = dy, dy.new_empty(clients, slots)
        row_kernels.linear_backward_kernel[(clients * slots,)](
            self.g, self.y, self._mask, self.x, self.squares, size, self.x.shape[2],
            MASK=self.mask is not None, RELU=self.block.relu, BIAS=self.block.bias is not None, TILE=512,
        )  # fmt: skip
        return torch.bmm(self.g, self.weight).view(self.shape) if needs_dx else None

    def squared_norms(self) -> Tensor:
        return self.squares

    def product(self, counts: Tensor) -> Product:
        return Product(self.block.weight, self.block.bias, self.g, self.x, counts)

    def sum_gradients(self, factors: Tensor | None, sums: Weights) -> None:
        clients, slots, size = self.y.shape
        if factors is not None:
            inputs = self.x.shape[2]
            row_kernels.scale_rows_kernel[(clients * slots,)](self.g, self.x, factors, size, inputs, TILE=512)
        torch.bmm(self.g.mT, self.x, out=sums[self.block.weight])
        if self.block.bias:
            torch.sum(self.g, 1, out=sums[self.block.bias])

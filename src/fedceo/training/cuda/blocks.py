"""The blocks of a chain on kernels: which have which.

Where torch's own switch allows TF32, torch.set_float32_matmul_precision("high"), linear layers multiply in it, and
convolutions keep images, weights and gradients in float16 (convolution.py). Otherwise products are as exact as float32:
three TF32 products each inside a convolution, plain float32 in cuBLAS.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.batched.blocks import Block, Linear, Pass
from fedceo.training.batched.cohort import Batch
from fedceo.training.batched.convolution import Conv
from fedceo.training.batched.recurrent import Recurrent
from fedceo.training.cuda.convolution import FusedConvPass, kept_in
from fedceo.training.cuda.first_convolution import FirstConvPass, as_blocks, fits
from fedceo.training.cuda.linear import FusedLinearPass, is_few
from fedceo.training.cuda.recurrent import FusedRecurrentPass

MOST_POOLED = 128
"""Pooled values that an int8 can tell apart."""


def fuse(blocks: Sequence[Block], shape: tuple[int, ...] | None) -> tuple[Block, ...]:
    """The same chain, on kernels where there are any for a block; shape: of records that the first block takes."""

    def fused(block: Block, first: bool) -> Block:
        if isinstance(block, Linear):
            return FusedLinear(block)
        if isinstance(block, Recurrent):
            return FusedRecurrent(block)
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
        if not self._takes_blocks:
            return FusedConvPass(self.block, weights, x, batch.counts, self.feeds_conv)
        assert self.shape is not None
        if x.dtype != torch.float16:
            x = self.stored(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return FirstConvPass(self.block, weights, x, batch.counts, self.shape[1:], self.feeds_conv)


@dataclass(frozen=True)
class FusedLinear:
    """A linear layer whose bias, mask and ReLU are one kernel forward and one backward."""

    block: Linear

    @property
    def names(self) -> tuple[str, ...]:
        return self.block.names

    def run(self, weights: Weights, x: Tensor, batch: Batch) -> FusedLinearPass:
        return FusedLinearPass(self.block, weights, x, batch)

    def reads_in_place(self, shapes: Mapping[str, torch.Size]) -> bool:
        return is_few(shapes[self.block.weight][0])


@dataclass(frozen=True)
class FusedRecurrent:
    """An LSTM layer whose cell is one kernel for each token."""

    block: Recurrent

    @property
    def names(self) -> tuple[str, ...]:
        return self.block.names

    def run(self, weights: Weights, x: Tensor, batch: Batch) -> FusedRecurrentPass:
        return FusedRecurrentPass(self.block, weights, x, batch.x)

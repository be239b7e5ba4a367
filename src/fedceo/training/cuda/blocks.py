"""The blocks of a chain on the kernels of convolution_kernels.py and row_kernels.py.

Where torch's own switch allows TF32, torch.set_float32_matmul_precision("high"), linear layers multiply in it, and
convolutions keep images, weights and gradients in float16, which has the ten bits of TF32's fraction in half the
memory: reading is what limits them. Gradients are held there times SCALE. Otherwise products are as exact as float32:
three TF32 products each inside a convolution, plain float32 in cuBLAS.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.batched.blocks import Block, Conv, Linear, squares_by_position
from fedceo.training.batched.cohort import Batch
from fedceo.training.cuda import convolution_kernels, row_kernels

SUM = {"TILE": 128, "AT_ONCE": 32, "num_warps": 2}
SUM_SMALL = {"TILE": 64, "AT_ONCE": 32, "num_warps": 4}
"""For sums of fewer than SMALL entries, so that there are programs enough."""
SMALL = 2**14
UNPOOL = {"TILE": 1024, "num_warps": 4}


@dataclass(frozen=True)
class Tiles:
    """The tiles into which the kernels of a convolution cut their work.

    The narrow ones are for images of fewer than 16 channels. TILE counts rows of a product; a pooled value takes as
    many rows as values are pooled. `most` is the number of sums that a warp can hold in registers: where there are
    more columns, rows are fewer.
    """

    forward: dict[str, int]
    forward_narrow: dict[str, int]
    back: dict[str, int]
    gradients: dict[str, int]
    gradients_narrow: dict[str, int]
    most: int


TILES = {
    torch.float16: Tiles(
        forward={"TILE": 256, "TILE_IN": 32, "num_warps": 4, "num_stages": 3},
        forward_narrow={"TILE": 256, "TILE_IN": 16, "num_warps": 4, "num_stages": 1},
        back={"TILE": 128, "TILE_OUT": 64, "num_warps": 4, "num_stages": 3},
        gradients={"TILE": 128, "TILE_IN": 128, "num_warps": 4, "num_stages": 1},
        gradients_narrow={"TILE": 128, "TILE_IN": 128, "num_warps": 4, "num_stages": 1},
        most=4096,
    ),
    torch.float32: Tiles(
        forward={"TILE": 256, "TILE_IN": 32, "num_warps": 8, "num_stages": 3},
        forward_narrow={"TILE": 128, "TILE_IN": 16, "num_warps": 2, "num_stages": 1},
        back={"TILE": 64, "TILE_OUT": 32, "num_warps": 4, "num_stages": 3},
        gradients={"TILE": 16, "TILE_IN": 64, "num_warps": 2, "num_stages": 3},
        gradients_narrow={"TILE": 16, "TILE_IN": 128, "num_warps": 4, "num_stages": 3},
        most=2048,
    ),
}
"""Tiles by what is kept: those that were fastest on an H200 for LeNet-5 on CIFAR-10."""

SCALE = 64.0
"""What a gradient in float16 is multiplied by: records' gradients with respect to activations are mostly below 1."""
MOST_POOLED = 128
"""Pooled values that an int8 can tell apart."""
PROGRAMS = 1024
"""Programs that keep a GPU busy; where single records' gradients are not needed, groups of them make so many."""


def fuse(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The same chain, on kernels where there are any for a block."""

    def fused(block: Block, first: bool) -> Block:
        if isinstance(block, Linear):
            return FusedLinear(block)
        assert isinstance(block, Conv)
        square = all(one == other for one, other in (block.stride, block.padding, block.side))
        small = block.pool**2 <= MOST_POOLED
        return FusedConv(block) if square and small and (first or block.stride[0] == 1) else block

    found = [fused(block, first=i == 0) for i, block in enumerate(blocks)]
    for before, after in pairwise(found):
        if isinstance(before, FusedConv) and isinstance(after, FusedConv):
            before.feeds_conv = True
    return tuple(found)


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

    def sum_gradients(self, factors: Tensor | None, sums: Weights) -> None:
        clients, slots, size = self.y.shape
        if factors is not None:
            inputs = self.x.shape[2]
            row_kernels.scale_rows_kernel[(clients * slots,)](self.g, self.x, factors, size, inputs, TILE=512)
        torch.bmm(self.g.mT, self.x, out=sums[self.block.weight])
        if self.block.bias:
            torch.sum(self.g, 1, out=sums[self.block.bias])


@dataclass
class FusedConv:
    """A convolution with its ReLU and pooling: one kernel forward, up to three backward.

    Attributes:
        feeds_conv: whether the next block is such a convolution too, which takes images as this one keeps them.
    """

    block: Conv
    feeds_conv: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return self.block.names

    def run(self, weights: Weights, x: Tensor, batch: Batch) -> "FusedConvPass":
        return FusedConvPass(self, weights, x, batch.counts)


class FusedConvPass:
    """x: (K, B, channels, height, width), channels last in memory."""

    def __init__(self, fused: FusedConv, weights: Weights, x: Tensor, counts: Tensor) -> None:
        self.block, self.counts = fused.block, counts
        self.kept = torch.float32 if torch.get_float32_matmul_precision() == "highest" else torch.float16
        weight, block = weights[fused.block.weight], fused.block
        real = x.shape[2]
        narrow = self.kept == torch.float16 and real < 16 and x.dtype == torch.float32
        self.x = x = _channels_last(x, self.kept, 4 if narrow else 1)
        clients, self.slots, channels, height, width = x.shape
        out, side, stride, padding = weight.shape[1], block.side[0], block.stride[0], block.padding[0]
        self.weight = x.new_empty(clients, side * side, real, out)
        tiles = {"TILE": 32, "TILE_OUT": _tile(out)}
        grid = (clients, triton.cdiv(real * side * side, 32), triton.cdiv(out, _tile(out)))
        convolution_kernels.pack_weights_kernel[grid](
            weight, self.weight, weight.stride(0), OUT=out, CHANNELS=real, TAPS=side * side, **tiles
        )
        rows, columns = (((length + 2 * padding - side) // stride + 1) // block.pool for length in (height, width))
        kept = self.kept if fused.feeds_conv else torch.float32
        y = x.new_empty(clients, self.slots, rows, columns, out, dtype=kept)
        self.winner = torch.empty_like(y, dtype=torch.int8)
        self.y = y.permute(0, 1, 4, 2, 3)
        self.sizes: dict[str, Any] = {
            "HEIGHT": height, "WIDTH": width, "CHANNELS": channels, "OUT": out, "SIDE": side, "PADDING": padding,
            "PRECISION": "tf32x3",
        }  # fmt: skip
        self.row = {"ROW": triton.next_power_of_2(side) if narrow else side}
        self.real = {"REAL": real}
        self.forms = block.forms_gradients(x.shape[2:], (out, rows * block.pool, columns * block.pool))
        self.tiles = TILES[self.kept]
        tiles = self._fitted(self.tiles.forward_narrow if channels < 16 else self.tiles.forward, "TILE")
        offsets = triton.next_power_of_2(block.pool**2)
        pairs = max(1, tiles["TILE"] // offsets)
        grid = (clients, triton.cdiv(self.slots * rows * columns, pairs), triton.cdiv(out, _tile(out)))
        bias = weights[block.bias] if block.bias else x
        convolution_kernels.forward_kernel[grid](
            x, self.weight, bias, y, self.winner, counts, self.slots, bias.stride(0),
            **self.sizes, **self.row, **self.real, **tiles | {"TILE": pairs}, ROWS=rows, COLUMNS=columns,
            POOL=block.pool, OFFSETS=offsets, TILE_OUT=_tile(out), STRIDE=stride, RELU=block.relu,
            BIAS=block.bias is not None,
        )  # fmt: skip

    def backward(self, dy: Tensor, needs_dx: bool) -> Tensor | None:
        clients, slots, channels, height, width = self.x.shape
        self.dy = _channels_last(dy, dy.dtype)
        self.scale = SCALE if self.kept == torch.float16 and dy.dtype == torch.float32 else 1.0
        if not needs_dx:
            return None
        dx, tiles, dz = torch.empty_like(self.x), self.tiles.back, self.dz  # dx in the same order in memory as x
        grid = (clients, triton.cdiv(slots * height * width, tiles["TILE"]), triton.cdiv(channels, _tile(channels)))
        convolution_kernels.input_gradients_kernel[grid](
            dz, self.weight, dx, self.counts, slots, **self.sizes, **tiles, TILE_IN=_tile(channels),
            ROWS=dz.shape[2], COLUMNS=dz.shape[3],
        )  # fmt: skip
        return dx

    @cached_property
    def dz(self) -> Tensor:
        """(K, B, R P, C P, out) gradient before ReLU and pooling."""
        clients, slots, out, rows, columns = self.y.shape
        pool = self.block.pool
        dz = self.x.new_empty(clients, slots, rows * pool, columns * pool, out)
        convolution_kernels.unpool_kernel[(clients * slots, triton.cdiv(dz[0, 0].numel(), UNPOOL["TILE"]))](
            self.dy, self.winner, dz, self.counts, slots,
            ROWS=rows, COLUMNS=columns, OUT=out, POOL=pool, SCALE=self.scale, **UNPOOL,
        )  # fmt: skip
        return dz

    @property
    def held(self) -> float:
        """What the gradients are multiplied by as they are kept."""
        return SCALE if self.kept == torch.float16 else 1.0

    def squared_norms(self) -> Tensor:
        if self.forms:
            return self._gradients(None, each=True).sum(1).view(self.x.shape[:2])
        g = self.dz.flatten(0, 1).permute(0, 3, 1, 2)
        squares = squares_by_position(self.x.flatten(0, 1), g, self.block) / self.held**2
        return squares.float().view(self.x.shape[:2])

    def sum_gradients(self, factors: Tensor | None, sums: Weights) -> None:
        each = factors is not None and self.forms
        if not each:
            self._gradients(factors, each=False)
        group = 1 if each else self._group
        for name, gradients, sizes in (
            (self.block.weight, self.each, self.sizes | self.row | self.real),
            (self.block.bias, self.each_bias, self.sizes | {"CHANNELS": 1, "REAL": 1, "SIDE": 1, "ROW": 1}),
        ):
            if name:
                size = sizes["SIDE"] * sizes["ROW"] * sizes["CHANNELS"] * sizes["OUT"]
                tiles = SUM if size >= SMALL else SUM_SMALL
                convolution_kernels.weighted_sum_kernel[(len(self.x), triton.cdiv(size, tiles["TILE"]))](
                    gradients, factors if each else gradients, sums[name], self.counts, self.slots, group,
                    sums[name].stride(0), WEIGHTED=each, HELD=self.held, **tiles,
                    **{name: sizes[name] for name in ("CHANNELS", "REAL", "OUT", "SIDE", "ROW")},
                )  # fmt: skip

    @property
    def _group(self) -> int:
        """Records that a program of the weight gradients takes, so many that there are programs enough."""
        programs = len(self.x) * self.slots * prod(self._parts)
        return min(self.slots, max(1, programs // PROGRAMS))

    @property
    def _parts(self) -> tuple[int, int]:
        """Into how many tiles a gradient is cut, over the entries of a patch and over the channels that come out."""
        patch = self.block.side[0] * self.row["ROW"] * self.x.shape[2]
        return triton.cdiv(patch, self._tiles["TILE_IN"]), triton.cdiv(self.sizes["OUT"], _tile(self.sizes["OUT"]))

    @property
    def _tiles(self) -> dict[str, int]:
        narrow = self.x.shape[2] < 16
        return self._fitted(self.tiles.gradients_narrow if narrow else self.tiles.gradients, "TILE_IN")

    def _fitted(self, tiles: dict[str, int], rows: str) -> dict[str, int]:
        return tiles | {rows: min(tiles[rows], self.tiles.most * tiles["num_warps"] // _tile(self.sizes["OUT"]))}

    def _gradients(self, factors: Tensor | None, each: bool) -> Tensor:
        """Form the gradients of each record, or of groups of them; returns the squared norms of each, (K B, parts)."""
        group, out, records = self._group, self.sizes["OUT"], len(self.x) * self.slots
        programs = len(self.x) * triton.cdiv(self.slots, group)
        kept, count = (self.kept, records) if each else (torch.float32, programs)
        self.each = self.x.new_empty(count, self.block.side[0] * self.row["ROW"] * self.x.shape[2], out, dtype=kept)
        self.each_bias = self.x.new_empty(count, out, dtype=torch.float32)
        squares = self.x.new_empty(records, prod(self._parts), dtype=torch.float32)
        rows, columns = self.dz.shape[2:4]
        tile, lane = max(16, triton.next_power_of_2(rows * columns)), columns  # a whole record in a turn
        if tile > self._tiles["TILE"]:
            lane = triton.next_power_of_2(columns)
            tile = max(self._tiles["TILE"], lane)
        convolution_kernels.weight_gradients_kernel[(programs, *self._parts)](
            self.x, self.dz, squares if factors is None else factors, self.each, self.each_bias, squares,
            self.counts, self.slots, group, **self.sizes, **self.row, **self._tiles | {"TILE": tile},
            ROWS=rows, COLUMNS=columns, LANE=lane, STRIDE=self.block.stride[0], TILE_OUT=_tile(out),
            BIAS=self.block.bias is not None, EACH=each, WEIGHTED=factors is not None, HELD=self.held,
        )  # fmt: skip
        return squares


def _copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in this precision, its axes in their order in memory: one pass where anything has to change."""
    return tensor.to(dtype, memory_format=torch.contiguous_format).contiguous()


def _channels_last(images: Tensor, dtype: torch.dtype, multiple: int = 1) -> Tensor:
    """The same (K, B, channels, height, width) images in this precision, with channels last in memory.

    Channels of zeros follow up to a multiple of a number.
    """
    if images.shape[2] % multiple:
        images = F.pad(images, (0, 0, 0, 0, 0, -images.shape[2] % multiple))
    return _copy(images.permute(0, 1, 3, 4, 2), dtype).permute(0, 1, 4, 2, 3)


def _tile(channels: int) -> int:
    """The width of a tile over channels; a tensor core's product takes at least 16."""
    return min(64, max(16, triton.next_power_of_2(channels)))

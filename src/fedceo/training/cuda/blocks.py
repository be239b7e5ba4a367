"""The blocks of a chain on the kernels of convolution_kernels.py and row_kernels.py.

Products in TF32 are used where torch's own switch allows them: torch.set_float32_matmul_precision("high"). Otherwise
they are as exact as float32: three TF32 products each inside a convolution, plain float32 in cuBLAS.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.batched.blocks import Block, Conv, Linear, squares_by_position
from fedceo.training.batched.cohort import Batch
from fedceo.training.cuda import convolution_kernels, row_kernels

SUM = {"TILE": 512, "AT_ONCE": 8, "num_warps": 4}
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
    "tf32": Tiles(
        forward={"TILE": 64, "TILE_IN": 32, "num_warps": 2, "num_stages": 2},
        forward_narrow={"TILE": 256, "TILE_IN": 16, "num_warps": 2, "num_stages": 1},
        back={"TILE": 128, "TILE_OUT": 32, "num_warps": 4, "num_stages": 3},
        gradients={"TILE": 16, "TILE_IN": 64, "num_warps": 1, "num_stages": 3},
        gradients_narrow={"TILE": 16, "TILE_IN": 128, "num_warps": 1, "num_stages": 3},
        most=4096,
    ),
    "tf32x3": Tiles(
        forward={"TILE": 256, "TILE_IN": 32, "num_warps": 8, "num_stages": 3},
        forward_narrow={"TILE": 128, "TILE_IN": 16, "num_warps": 2, "num_stages": 1},
        back={"TILE": 64, "TILE_OUT": 32, "num_warps": 4, "num_stages": 3},
        gradients={"TILE": 16, "TILE_IN": 64, "num_warps": 2, "num_stages": 3},
        gradients_narrow={"TILE": 16, "TILE_IN": 128, "num_warps": 4, "num_stages": 3},
        most=2048,
    ),
}
"""Tiles by precision: those that were fastest on an H200 for LeNet-5 on CIFAR-10."""

MOST_POOLED = 128
"""Pooled values that an int8 can tell apart."""
PROGRAMS = 1024
"""Programs that keep a GPU busy; where single records' gradients are not needed, groups of them make so many."""


def fuse(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The same chain, on kernels where there are any for a block."""

    def fused(block: Block, first: bool) -> Block:
        if isinstance(block, Linear):
            return FusedLinear(block)
        if not isinstance(block, Conv):
            return block
        square = all(one == other for one, other in (block.stride, block.padding, block.side))
        small = block.pool**2 <= MOST_POOLED
        return FusedConv(block) if square and small and (first or block.stride[0] == 1) else block

    return tuple(fused(block, first=i == 0) for i, block in enumerate(blocks))


def precision() -> str:
    """The precision in which the kernels multiply."""
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


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


@dataclass(frozen=True)
class FusedConv:
    """A convolution with its ReLU and pooling: one kernel forward, three backward."""

    block: Conv

    @property
    def names(self) -> tuple[str, ...]:
        return self.block.names

    def run(self, weights: Weights, x: Tensor, batch: Batch) -> "FusedConvPass":
        return FusedConvPass(self.block, weights, x, batch.counts)


class FusedConvPass:
    """x: (K, B, channels, height, width), channels last in memory."""

    def __init__(self, block: Conv, weights: Weights, x: Tensor, counts: Tensor) -> None:
        self.block, self.counts = block, counts
        self.x = x = _channels_last(x)
        clients, self.slots, channels, height, width = x.shape
        weight = weights[block.weight]
        out, side, stride, padding = weight.shape[1], block.side[0], block.stride[0], block.padding[0]
        # (K, OUT, channels, taps) -> (K, taps, channels, OUT), so that neighbours in a patch are neighbours here
        self.weight = weight.flatten(3).permute(0, 3, 2, 1).contiguous()
        rows, columns = (((length + 2 * padding - side) // stride + 1) // block.pool for length in (height, width))
        y = x.new_empty(clients, self.slots, rows, columns, out)
        self.winner = torch.empty_like(y, dtype=torch.int8)
        self.y = y.permute(0, 1, 4, 2, 3)
        self.sizes: dict[str, Any] = {
            "HEIGHT": height, "WIDTH": width, "CHANNELS": channels, "OUT": out, "SIDE": side, "PADDING": padding,
            "PRECISION": precision(),
        }  # fmt: skip
        self.taps = side * side
        self.forms = block.forms_gradients(x.shape[2:], (out, rows * block.pool, columns * block.pool))
        self.tiles = TILES[self.sizes["PRECISION"]]
        tiles = self._fitted(self.tiles.forward_narrow if channels < 16 else self.tiles.forward, "TILE")
        offsets = triton.next_power_of_2(block.pool**2)
        pairs = max(1, tiles["TILE"] // offsets)
        grid = (clients, triton.cdiv(self.slots * rows * columns, pairs), triton.cdiv(out, _tile(out)))
        bias = weights[block.bias] if block.bias else x
        convolution_kernels.forward_kernel[grid](
            x, self.weight, bias, y, self.winner, counts, self.slots, bias.stride(0),
            **self.sizes, **tiles | {"TILE": pairs}, ROWS=rows, COLUMNS=columns, POOL=block.pool, OFFSETS=offsets,
            TILE_OUT=_tile(out), STRIDE=stride, RELU=block.relu, BIAS=block.bias is not None,
        )  # fmt: skip

    def backward(self, dy: Tensor, needs_dx: bool) -> Tensor | None:
        clients, slots, channels, height, width = self.x.shape
        _, _, out, rows, columns = self.y.shape
        pool = self.block.pool
        self.dz = dy.new_empty(clients, slots, rows * pool, columns * pool, out)
        convolution_kernels.unpool_kernel[(clients * slots, triton.cdiv(self.dz[0, 0].numel(), UNPOOL["TILE"]))](
            _channels_last(dy), self.winner, self.dz, self.counts, slots,
            ROWS=rows, COLUMNS=columns, OUT=out, POOL=pool, **UNPOOL,
        )  # fmt: skip
        self.sizes |= {"ROWS": rows * pool, "COLUMNS": columns * pool}
        if not needs_dx:
            return None
        dx, tiles = torch.empty_like(self.x), self.tiles.back  # in the same order in memory
        grid = (clients, triton.cdiv(slots * height * width, tiles["TILE"]), triton.cdiv(channels, _tile(channels)))
        convolution_kernels.input_gradients_kernel[grid](
            self.dz, self.weight, dx, self.counts, slots, **self.sizes, **tiles, TILE_IN=_tile(channels)
        )
        return dx

    def squared_norms(self) -> Tensor:
        if self.forms:
            return self._gradients(group=1).sum(1).view(self.x.shape[:2])
        g = self.dz.flatten(0, 1).permute(0, 3, 1, 2)
        return squares_by_position(self.x.flatten(0, 1), g, self.block).to(g.dtype).view(self.x.shape[:2])

    def sum_gradients(self, factors: Tensor | None, sums: Weights) -> None:
        group = 1
        if factors is not None and not self.forms:
            each = factors[..., None, None, None]
            self.dz = torch.where(each > 0, each * self.dz, 0.0)  # it may be NaN, and 0 * NaN is NaN
            self.x = _channels_last(torch.where(each > 0, self.x, 0.0))
            factors = None
        if factors is None:
            out, tiles = self.sizes["OUT"], self._tiles["TILE_IN"]
            parts = triton.cdiv(self.taps * self.x.shape[2], tiles) * triton.cdiv(out, _tile(out))
            programs = len(self.x) * self.slots * parts
            group = min(self.slots, max(1, programs // PROGRAMS))
            self._gradients(group)
        self._weighted_sum(self.each, factors, sums[self.block.weight], group, self.x.shape[2], self.taps)
        if self.block.bias:
            self._weighted_sum(self.each_bias, factors, sums[self.block.bias], group, 1, 1)

    @property
    def _tiles(self) -> dict[str, int]:
        narrow = self.x.shape[2] < 16
        return self._fitted(self.tiles.gradients_narrow if narrow else self.tiles.gradients, "TILE_IN")

    def _fitted(self, tiles: dict[str, int], rows: str) -> dict[str, int]:
        return tiles | {rows: min(tiles[rows], self.tiles.most * tiles["num_warps"] // _tile(self.sizes["OUT"]))}

    def _gradients(self, group: int) -> Tensor:
        """Form the gradients of `group` records at a time; returns their squared norms, (groups, parts)."""
        patch, out = self.taps * self.x.shape[2], self.sizes["OUT"]
        groups = len(self.x) * triton.cdiv(self.slots, group)
        parts = triton.cdiv(patch, self._tiles["TILE_IN"]), triton.cdiv(out, _tile(out))
        self.each = self.x.new_empty(groups, patch, out)
        self.each_bias = self.x.new_empty(groups, out)
        squares = self.x.new_empty(groups, parts[0] * parts[1])
        convolution_kernels.weight_gradients_kernel[(groups, *parts)](
            self.x, self.dz, self.each, self.each_bias, squares, self.counts, self.slots, group,
            **self.sizes, **self._tiles, TILE_OUT=_tile(out), STRIDE=self.block.stride[0],
            BIAS=self.block.bias is not None,
        )  # fmt: skip
        return squares

    def _weighted_sum(
        self, each: Tensor, factors: Tensor | None, sums: Tensor, group: int, channels: int, taps: int
    ) -> None:
        """Write the (K, ...) sums over groups of factor times gradient, in torch's order of axes."""
        out = self.sizes["OUT"]
        size = taps * channels * out
        tiles = SUM if size >= SMALL else SUM_SMALL
        convolution_kernels.weighted_sum_kernel[(len(self.x), triton.cdiv(size, tiles["TILE"]))](
            each, each if factors is None else factors, sums, self.counts, self.slots, group, sums.stride(0),
            CHANNELS=channels, OUT=out, TAPS=taps, WEIGHTED=factors is not None, **tiles,
        )  # fmt: skip


def _channels_last(images: Tensor) -> Tensor:
    """The same (K, B, channels, height, width) images, with channels last in memory."""
    return images.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def _tile(channels: int) -> int:
    """The width of a tile over channels; a tensor core's product takes at least 16."""
    return min(64, max(16, triton.next_power_of_2(channels)))

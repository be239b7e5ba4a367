"""A convolution with its ReLU and pooling on the kernels of convolution_kernels.py.

Under TF32 images, weights and gradients are kept in float16, which has the ten bits of TF32's fraction in half the
memory: reading is what limits a convolution. Gradients are held there times SCALE. Every sum is float32, and the norm
of a record's gradient is that of the gradient as it is kept, so that what is clipped is what is summed.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import triton
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.batched.convolution import Conv, squares_by_position
from fedceo.training.cuda import convolution_kernels, gradient_kernels

SUM = {"TILE": 64, "AT_ONCE": 64, "num_warps": 2}
SUM_SMALL = {"TILE": 32, "AT_ONCE": 64, "num_warps": 2}
"""For sums of fewer than SMALL entries, so that there are programs enough."""
SMALL = 2**14
UNPOOL = {"TILE": 1024, "num_warps": 4}
SCALE = 64.0
"""What a gradient in float16 is multiplied by: records' gradients with respect to activations are mostly below 1."""
PROGRAMS = 1024
"""Programs that keep a GPU busy: each takes as many records as leave so many."""


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
    each: dict[str, int]
    gradients: dict[str, int]
    gradients_narrow: dict[str, int]
    most: int


TILES = {
    torch.float16: Tiles(
        forward={"TILE": 256, "TILE_IN": 32, "num_warps": 4, "num_stages": 3},
        forward_narrow={"TILE": 256, "TILE_IN": 16, "num_warps": 4, "num_stages": 1},
        back={"TILE": 128, "TILE_OUT": 32, "num_warps": 4, "num_stages": 3},
        each={"TILE": 128, "TILE_IN": 64, "num_warps": 4, "num_stages": 3},
        gradients={"TILE": 128, "TILE_IN": 64, "num_warps": 4, "num_stages": 3},
        gradients_narrow={"TILE": 128, "TILE_IN": 64, "num_warps": 4, "num_stages": 2},
        most=4096,
    ),
    torch.float32: Tiles(
        forward={"TILE": 256, "TILE_IN": 32, "num_warps": 8, "num_stages": 3},
        forward_narrow={"TILE": 256, "TILE_IN": 16, "num_warps": 2, "num_stages": 1},
        back={"TILE": 64, "TILE_OUT": 32, "num_warps": 4, "num_stages": 3},
        each={"TILE": 32, "TILE_IN": 128, "num_warps": 4, "num_stages": 3},
        gradients={"TILE": 32, "TILE_IN": 128, "num_warps": 4, "num_stages": 3},
        gradients_narrow={"TILE": 64, "TILE_IN": 128, "num_warps": 4, "num_stages": 3},
        most=2048,
    ),
}
"""Tiles by what is kept: those that were fastest on an H200 for LeNet-5 on CIFAR-10."""


def kept_in() -> torch.dtype:
    """The precision in which images and gradients are kept between kernels."""
    return torch.float32 if torch.get_float32_matmul_precision() == "highest" else torch.float16


def held_times(kept: torch.dtype) -> float:
    """What gradients are multiplied by where they are kept in this precision."""
    return SCALE if kept == torch.float16 else 1.0


class FusedConvPass:
    """x: (K, B, channels, height, width), channels last in memory."""

    def __init__(self, block: Conv, weights: Weights, x: Tensor, counts: Tensor, feeds_conv: bool) -> None:
        """feeds_conv: whether the next block takes images as this one keeps them."""
        self.block, self.counts, self.kept = block, counts, kept_in()
        self.x = x = channels_last(x, self.kept)
        weight, self.tiles = weights[block.weight], TILES[self.kept]
        clients, self.slots, channels, height, width = x.shape
        out, side, stride, padding = weight.shape[1], block.side[0], block.stride[0], block.padding[0]
        self.weight = x.new_empty(clients, side * side, channels, out)
        grid = (clients, triton.cdiv(channels * side * side, 32), triton.cdiv(out, tile_of(out)))
        convolution_kernels.pack_weights_kernel[grid](
            weight, self.weight, weight.stride(0), OUT=out, CHANNELS=channels, TAPS=side**2,
            TILE=32, TILE_OUT=tile_of(out),
        )  # fmt: skip
        rows, columns = pooled_size(block, height, width)
        self.y, self.winner = outputs((clients, self.slots, out, rows, columns), x, feeds_conv)
        self.sizes: dict[str, Any] = {
            "HEIGHT": height, "WIDTH": width, "CHANNELS": channels, "OUT": out, "SIDE": side, "PADDING": padding,
            "PRECISION": "tf32x3",
        }  # fmt: skip
        self.forms = block.forms_gradients(x.shape[2:], (out, rows * block.pool, columns * block.pool))
        tiles = fitted(self.tiles.forward_narrow if channels < 16 else self.tiles.forward, "TILE", self.tiles, out)
        offsets = triton.next_power_of_2(block.pool**2)
        pairs = max(1, tiles["TILE"] // offsets)
        grid = (clients, triton.cdiv(self.slots * rows * columns, pairs), triton.cdiv(out, tile_of(out)))
        bias = weights[block.bias] if block.bias else x
        convolution_kernels.forward_kernel[grid](
            x, self.weight, bias, self.y, self.winner, counts, self.slots, bias.stride(0),
            **self.sizes, **tiles | {"TILE": pairs}, ROWS=rows, COLUMNS=columns, POOL=block.pool, OFFSETS=offsets,
            TILE_OUT=tile_of(out), STRIDE=stride, RELU=block.relu, BIAS=block.bias is not None,
            PLANAR=self.y.is_contiguous(),
        )  # fmt: skip

    def receive(self, dy: Tensor) -> None:
        """Unpool the gradient: self.dz, (K, B, R P, C P, out), is that before ReLU and pooling."""
        clients, slots, out, rows, columns = self.y.shape
        pool, dy = self.block.pool, dy if dy.stride() == self.y.stride() else dy.contiguous()
        self.dz = self.x.new_empty(clients, slots, rows * pool, columns * pool, out)
        convolution_kernels.unpool_kernel[(clients * slots, triton.cdiv(self.dz[0, 0].numel(), UNPOOL["TILE"]))](
            dy, self.winner, self.dz, self.counts, slots, ROWS=rows, COLUMNS=columns, OUT=out, POOL=pool,
            PLANAR=dy.is_contiguous(), SCALE=scale_of(dy, self.kept), **UNPOOL,
        )  # fmt: skip

    def backward(self, dy: Tensor, needs_dx: bool) -> Tensor | None:
        clients, slots, channels, height, width = self.x.shape
        if not needs_dx:
            return None
        dx, tiles, dz = torch.empty_like(self.x), self.tiles.back, self.dz  # dx in the same order in memory as x
        grid = (clients, triton.cdiv(slots * height * width, tiles["TILE"]), triton.cdiv(channels, tile_of(channels)))
        convolution_kernels.input_gradients_kernel[grid](
            dz, self.weight, dx, self.counts, slots, **self.sizes, **tiles, TILE_IN=tile_of(channels),
            ROWS=dz.shape[2], COLUMNS=dz.shape[3],
        )  # fmt: skip
        return dx

    def squared_norms(self) -> Tensor:
        if self.forms:
            self.formed, squares = self._form_each()
            return squares.view(self.x.shape[:2])
        g = self.dz.flatten(0, 1).permute(0, 3, 1, 2)
        squares = squares_by_position(self.x.flatten(0, 1), g, self.block) / held_times(self.kept) ** 2
        return squares.float().view(self.x.shape[:2])

    def sum_gradients(self, factors: Tensor | None, sums: Weights) -> None:
        if factors is None or not self.forms:
            self.formed, factors = self._form_groups(factors), None
        add_up(self.formed, factors, self.counts, self.block, sums)

    def _form_each(self) -> tuple["Formed", Tensor]:
        """The gradients of single records, and the (K * B,) squared norms of those that are no filling."""
        sizes = self._shapes(self.tiles.each)
        formed = Formed.of(self.block, self.x, sizes["CHANNELS"], sizes["OUT"], 1, self.kept)
        parts = triton.cdiv(sizes["OUT"], sizes["TILE_OUT"])
        squares = self.x.new_empty(len(formed.each), parts, dtype=torch.float32)
        gradient_kernels.record_gradients_kernel[squares.shape](
            self.x, self.dz, formed.each, squares, self.counts, self.slots, **sizes, HELD=formed.held
        )
        return formed, squares.sum(1) if parts > 1 else squares

    def _form_groups(self, factors: Tensor | None) -> "Formed":
        """The sums of gradients of groups of records, times their (K, B) factors where there are any."""
        narrow = self.x.shape[2] < 16
        sizes = self._shapes(self.tiles.gradients_narrow if narrow else self.tiles.gradients)
        patch = sizes["SIDE"] ** 2 * sizes["CHANNELS"]
        parts = triton.cdiv(patch, sizes["TILE_IN"]), triton.cdiv(sizes["OUT"], sizes["TILE_OUT"])
        group = group_of(self.x, prod(parts))
        formed = Formed.of(self.block, self.x, sizes["CHANNELS"], sizes["OUT"], group, torch.float32)
        gradient_kernels.group_gradients_kernel[(len(formed.each), *parts)](
            self.x, self.dz, self.dz if factors is None else factors, formed.each, self.counts, self.slots,
            formed.group, **sizes, WEIGHTED=factors is not None,
        )  # fmt: skip
        return formed

    def _shapes(self, tiles: dict[str, int]) -> dict[str, Any]:
        """The sizes and tiles of a kernel of gradients; positions are whole records where these fit into a tile."""
        rows, columns, out = self.dz.shape[2:]
        tile, lane = max(16, triton.next_power_of_2(rows * columns)), columns
        if tile > tiles["TILE"]:
            lane = triton.next_power_of_2(columns)
            tile = max(tiles["TILE"], lane)
        return {
            **self.sizes, "STRIDE": self.block.stride[0], "ROWS": rows, "COLUMNS": columns, "LANE": lane,
            "BIAS": self.block.bias is not None, "TILE_OUT": tile_of(out),
            **fitted(tiles, "TILE_IN", self.tiles, out), "TILE": tile,
        }  # fmt: skip


@dataclass(frozen=True)
class Formed:
    """Gradients of single records, or of groups of a client's records.

    Attributes:
        each: (groups, side * side * channels, out), as they are kept, with a row more for the bias.
        group: how many records are summed in one.
        slots: of a client's batch.
        held: what the gradients are multiplied by.
    """

    each: Tensor
    group: int
    slots: int
    held: float

    @staticmethod
    def of(block: Conv, x: Tensor, channels: int, out: int, group: int, kept: torch.dtype) -> "Formed":
        """Room for those of (K, B, ...) images of so many channels, in this precision."""
        clients, slots = x.shape[:2]
        rows = prod(block.side) * channels + (block.bias is not None)
        each = x.new_empty(clients * triton.cdiv(slots, group), rows, out, dtype=kept)
        return Formed(each, group, slots, held_times(x.dtype))


def group_of(x: Tensor, parts: int) -> int:
    """The records that one program sums up, where so many programs share the work on a group."""
    clients, slots = x.shape[:2]
    return min(slots, max(1, clients * slots * parts // PROGRAMS))


def add_up(formed: Formed, factors: Tensor | None, counts: Tensor, block: Conv, sums: Weights) -> None:
    """Write the (K, ...) sums over groups of gradient times factor, in torch's order of axes."""
    weight, each = sums[block.weight], formed.each
    bias = sums[block.bias] if block.bias else weight
    size = each[0].numel()
    tiles = SUM if size >= SMALL else SUM_SMALL
    gradient_kernels.weighted_sum_kernel[(len(counts), triton.cdiv(size, tiles["TILE"]))](
        each, each if factors is None else factors, weight, bias, counts, formed.slots, formed.group,
        weight.stride(0), bias.stride(0), CHANNELS=weight.shape[2], OUT=each.shape[2], TAPS=prod(block.side),
        BIAS=block.bias is not None, WEIGHTED=factors is not None, HELD=formed.held, **tiles,
    )  # fmt: skip


def outputs(shape: tuple[int, ...], x: Tensor, feeds_conv: bool) -> tuple[Tensor, Tensor]:
    """Room for (K, B, out, rows, columns) pooled outputs and their winners.

    They lie channels last in the precision of the images x where the next block is such a convolution too; every other
    takes float32 in torch's order. Winners have channels last always.
    """
    clients, slots, out, rows, columns = shape
    last = x.new_empty(clients, slots, rows, columns, out, dtype=torch.int8)
    if feeds_conv:
        return torch.empty_like(last, dtype=x.dtype).permute(0, 1, 4, 2, 3), last
    return x.new_empty(shape, dtype=torch.float32), last


def channels_last(images: Tensor, dtype: torch.dtype) -> Tensor:
    """The same (K, B, channels, height, width) images in this precision, with channels last in memory."""
    images = images.permute(0, 1, 3, 4, 2)
    return images.to(dtype, memory_format=torch.contiguous_format).contiguous().permute(0, 1, 4, 2, 3)


def scale_of(dy: Tensor, kept: torch.dtype) -> float:
    """What dy is to be multiplied by: a gradient in float16 is so already."""
    return held_times(kept) if dy.dtype == torch.float32 else 1.0


def pooled_size(block: Conv, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of the pooled output for images of this size."""
    rows, columns = (
        ((length + 2 * padding - side) // stride + 1) // block.pool
        for length, padding, side, stride in zip((height, width), block.padding, block.side, block.stride, strict=True)
    )
    return rows, columns


def fitted(tiles: dict[str, int], rows: str, limits: Tiles, out: int) -> dict[str, int]:
    """The tiles, with fewer rows where so many sums do not fit into registers."""
    return tiles | {rows: min(tiles[rows], limits.most * tiles["num_warps"] // tile_of(out))}


def tile_of(channels: int) -> int:
    """The width of a tile over channels; a tensor core's product takes at least 16."""
    return min(64, max(16, triton.next_power_of_2(channels)))

"""A convolution with its ReLU and pooling on the kernels of convolution_kernels.py.

Under TF32 images, weights and gradients are kept in float16, which has the ten bits of TF32's fraction in half the
memory: reading is what limits a convolution. Gradients are held there times SCALE. Every sum is float32, and the norm
of a record's gradient is that of the gradient as it is kept, so that what is clipped is what is summed.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
import triton
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.batched.blocks import Conv, squares_by_position
from fedceo.training.cuda import convolution_kernels

SUM = {"TILE": 128, "AT_ONCE": 32, "num_warps": 2}
SUM_SMALL = {"TILE": 64, "AT_ONCE": 32, "num_warps": 4}
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
    gradients: dict[str, int]
    gradients_narrow: dict[str, int]
    most: int


TILES = {
    torch.float16: Tiles(
        forward={"TILE": 256, "TILE_IN": 32, "num_warps": 4, "num_stages": 3},
        forward_narrow={"TILE": 256, "TILE_IN": 16, "num_warps": 4, "num_stages": 1},
        back={"TILE": 128, "TILE_OUT": 32, "num_warps": 4, "num_stages": 3},
        gradients={"TILE": 128, "TILE_IN": 128, "num_warps": 4, "num_stages": 2},
        gradients_narrow={"TILE": 128, "TILE_IN": 64, "num_warps": 4, "num_stages": 2},
        most=4096,
    ),
    torch.float32: Tiles(
        forward={"TILE": 256, "TILE_IN": 32, "num_warps": 8, "num_stages": 3},
        forward_narrow={"TILE": 256, "TILE_IN": 16, "num_warps": 2, "num_stages": 1},
        back={"TILE": 64, "TILE_OUT": 32, "num_warps": 4, "num_stages": 3},
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

    def __init__(self, block: Conv, weights: Weights, x: Tensor, counts: Tensor, feeds: torch.dtype) -> None:
        """feeds: the precision in which the next block takes images."""
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
        y = x.new_empty(clients, self.slots, rows, columns, out, dtype=feeds)
        self.winner = torch.empty_like(y, dtype=torch.int8)
        self.y = y.permute(0, 1, 4, 2, 3)
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
            x, self.weight, bias, y, self.winner, counts, self.slots, bias.stride(0),
            **self.sizes, **tiles | {"TILE": pairs}, ROWS=rows, COLUMNS=columns, POOL=block.pool, OFFSETS=offsets,
            TILE_OUT=tile_of(out), STRIDE=stride, RELU=block.relu, BIAS=block.bias is not None,
        )  # fmt: skip

    def backward(self, dy: Tensor, needs_dx: bool) -> Tensor | None:
        clients, slots, channels, height, width = self.x.shape
        self.dy = channels_last(dy, dy.dtype)
        if not needs_dx:
            return None
        dx, tiles, dz = torch.empty_like(self.x), self.tiles.back, self.dz  # dx in the same order in memory as x
        grid = (clients, triton.cdiv(slots * height * width, tiles["TILE"]), triton.cdiv(channels, tile_of(channels)))
        convolution_kernels.input_gradients_kernel[grid](
            dz, self.weight, dx, self.counts, slots, **self.sizes, **tiles, TILE_IN=tile_of(channels),
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
            self.dy, self.winner, dz, self.counts, slots, ROWS=rows, COLUMNS=columns, OUT=out, POOL=pool,
            SCALE=scale_of(self.dy, self.kept), **UNPOOL,
        )  # fmt: skip
        return dz

    def squared_norms(self) -> Tensor:
        if self.forms:
            self.formed = self._form(None, each=True)
            return self.formed.squares.sum(1).view(self.x.shape[:2])
        g = self.dz.flatten(0, 1).permute(0, 3, 1, 2)
        squares = squares_by_position(self.x.flatten(0, 1), g, self.block) / held_times(self.kept) ** 2
        return squares.float().view(self.x.shape[:2])

    def sum_gradients(self, factors: Tensor | None, sums: Weights) -> None:
        if factors is None or not self.forms:
            self.formed, factors = self._form(factors, each=False), None
        add_up(self.formed, factors, (self.counts, self.slots), self.block, sums)

    def _form(self, factors: Tensor | None, each: bool) -> "Formed":
        block = self.block
        narrow = self.x.shape[2] < 16
        tiles = self.tiles.gradients_narrow if narrow else self.tiles.gradients
        tiles = fitted(tiles, "TILE_IN", self.tiles, self.dz.shape[4])
        return form_gradients(
            self.x.permute(0, 1, 3, 4, 2), self.dz, self.counts, factors, tiles, each, block.bias is not None,
            SIDE=block.side[0], STRIDE=block.stride[0], PADDING=block.padding[0],
        )  # fmt: skip


@dataclass(frozen=True)
class Formed:
    """Gradients of single records, or of groups of a client's records.

    Attributes:
        each: (groups, side * side * channels, out), as they are kept.
        each_bias: (groups, out).
        squares: (groups, parts) squared norms, of single records alone; without those of filling.
        group: how many records are summed in one.
        held: what the gradients are multiplied by.
    """

    each: Tensor
    each_bias: Tensor
    squares: Tensor
    group: int
    held: float


def form_gradients(
    x: Tensor,
    dz: Tensor,
    counts: Tensor,
    factors: Tensor | None,
    tiles: dict[str, int],
    each: bool,
    bias: bool,
    **sizes: int,
) -> Formed:
    """The gradients of each record, or of groups of them with their (K, B) factors.

    Args:
        x: (K, B, height, width, channels) images.
        dz: (K, B, rows, columns, out) gradients with respect to the convolution's output.
        sizes: SIDE, STRIDE and PADDING.
    """
    (clients, slots, height, width, channels), (rows, columns, out) = x.shape, dz.shape[2:]
    patch = sizes["SIDE"] ** 2 * channels
    tiles = {"TILE_OUT": tile_of(out)} | tiles
    parts = triton.cdiv(patch, tiles["TILE_IN"]), triton.cdiv(out, tiles["TILE_OUT"])
    group = min(slots, max(1, clients * slots * prod(parts) // PROGRAMS))
    programs = clients * triton.cdiv(slots, group)
    kept, count = (x.dtype, clients * slots) if each else (torch.float32, programs)
    found = x.new_empty(count, patch, out, dtype=kept)
    biases, squares = (x.new_empty(count, size, dtype=torch.float32) for size in (out, prod(parts)))
    tile, lane = max(16, triton.next_power_of_2(rows * columns)), columns  # a whole record in a turn
    if tile > tiles["TILE"]:
        lane = triton.next_power_of_2(columns)
        tile = max(tiles["TILE"], lane)
    held = held_times(x.dtype)
    convolution_kernels.weight_gradients_kernel[(programs, *parts)](
        x, dz, squares if factors is None else factors, found, biases, squares, counts, slots, group,
        **sizes, **tiles | {"TILE": tile}, HEIGHT=height, WIDTH=width, CHANNELS=channels, ROWS=rows, COLUMNS=columns,
        LANE=lane, OUT=out, BIAS=bias, EACH=each, WEIGHTED=factors is not None, HELD=held,
        PRECISION="tf32x3",
    )  # fmt: skip
    return Formed(found, biases, squares, 1 if each else group, held)


def add_up(formed: Formed, factors: Tensor | None, batch: tuple[Tensor, int], block: Conv, sums: Weights) -> None:
    """Write the (K, ...) sums over groups of gradient times factor, in torch's order of axes.

    batch: (K,) records of each client, and the slots of a batch.
    """
    (counts, slots), out = batch, formed.each.shape[2]
    taps = prod(block.side)
    for name, each, taps_here in ((block.weight, formed.each, taps), (block.bias, formed.each_bias, 1)):
        if name is None:
            continue
        size = each[0].numel()
        tiles = SUM if size >= SMALL else SUM_SMALL
        convolution_kernels.weighted_sum_kernel[(len(counts), triton.cdiv(size, tiles["TILE"]))](
            each, each if factors is None else factors, sums[name], counts, slots, formed.group, sums[name].stride(0),
            CHANNELS=size // (out * taps_here), OUT=out, TAPS=taps_here, WEIGHTED=factors is not None,
            HELD=formed.held, **tiles,
        )  # fmt: skip


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

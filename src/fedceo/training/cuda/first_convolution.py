"""A first convolution of few channels, stride 1 and 2 x 2 pooling, on images cut into 2 x 2 blocks, in float16.

Patches of three channels are read value by value, which is all that such a convolution waits for. A block of four
pixels is one position with 16 channels, read at once, and the four values that are pooled into one are computed from
the same blocks: for a 5 x 5 kernel on three channels 9 reads of 16 channels take the place of 100 reads of 3. Images
are cut once, before training. For gradients a pixel is read at once, with a one beside its channels, which makes the
bias one of the weights.
"""

from math import prod

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.batched.convolution import Conv
from fedceo.training.cuda import first_kernels
from fedceo.training.cuda.convolution import Formed, add_up, group_of, outputs, pooled_size, scale_of, tile_of

PIXEL = 4
"""Channels of a pixel, of which the last is a one."""
BLOCK = 4 * PIXEL
FORWARD = {"TILE": 128, "TILE_IN": 16, "num_warps": 4, "num_stages": 3}
GRADIENTS = {"TILE": 256, "TILE_IN": 128, "num_warps": 4, "num_stages": 1}
AT_ONCE = 2**13
"""Images that are cut at a time."""


def fits(block: Conv, channels: int) -> bool:
    """Whether a convolution of images of so many channels can be taken on blocks."""
    return channels < PIXEL and block.pool == 2 and block.stride == (1, 1)


def as_blocks(images: Tensor, block: Conv) -> Tensor:
    """(n, rows, columns, BLOCK) float16 blocks of (n, channels, height, width) images, with padding and ones."""
    (down, right), (height, width) = block.padding, images.shape[2:]
    sides = (right, right + width % 2, down, down + height % 2)
    rows, columns = (height + 2 * down + height % 2) // 2, (width + 2 * right + width % 2) // 2
    pixels = images.new_zeros(len(images), rows, columns, 4, PIXEL, dtype=torch.float16)
    pixels[..., -1] = 1
    most = torch.finfo(torch.float16).max
    for first in range(0, len(images), AT_ONCE):
        part = F.pad(images[first : first + AT_ONCE].clamp(-most, most), sides)
        cut = part.unflatten(3, (columns, 2)).unflatten(2, (rows, 2)).permute(0, 2, 4, 3, 5, 1).flatten(3, 4)
        pixels[first : first + AT_ONCE, ..., : images.shape[1]] = cut
    return pixels.flatten(3)


class FirstConvPass:
    """x: (K, B, rows, columns, BLOCK), images as blocks."""

    def __init__(
        self, block: Conv, weights: Weights, x: Tensor, counts: Tensor, size: tuple[int, ...], feeds_conv: bool
    ) -> None:
        """size: height and width of an image; feeds_conv: whether the next block takes images as they are kept here."""
        self.block, self.x, self.counts = block, x, counts
        weight = weights[block.weight]
        (clients, self.slots, height, width, _), (out, self.real, side) = x.shape, weight.shape[1:4]
        span = (side + 2) // 2
        rows, columns = pooled_size(block, *size)
        spread = x.new_empty(clients, span**2 * BLOCK, 4 * out)
        first_kernels.spread_weights_kernel[(clients, triton.cdiv(spread[0].numel(), 1024))](
            weight, spread, weight.stride(0), OUT=out, REAL=self.real, SIDE=side, SPAN=span, BLOCK=BLOCK, TILE=1024
        )
        self.y, self.winner = outputs((clients, self.slots, out, rows, columns), x, feeds_conv)
        self.sizes = {
            "HEIGHT": height, "WIDTH": width, "ROWS": rows, "COLUMNS": columns, "OUT": out, "BLOCK": BLOCK,
            "BIAS": block.bias is not None, "TILE_OUT": tile_of(out),
        }  # fmt: skip
        grid = (clients, triton.cdiv(self.slots * rows * columns, FORWARD["TILE"]), triton.cdiv(out, tile_of(out)))
        bias = weights[block.bias] if block.bias else x
        first_kernels.first_forward_kernel[grid](
            x, spread, bias, self.y, self.winner, counts, self.slots, bias.stride(0),
            **self.sizes, **FORWARD, SPAN=span, RELU=block.relu, PLANAR=self.y.is_contiguous(),
        )  # fmt: skip

    def backward(self, dy: Tensor, needs_dx: bool) -> None:
        assert not needs_dx, "records need no gradient"
        self.dy = dy if dy.stride() == self.y.stride() else dy.contiguous()

    def squared_norms(self) -> Tensor:
        self.formed, squares = self._form(1, self.x.dtype)
        return (squares.sum(1) if squares.shape[1] > 1 else squares).view(self.x.shape[:2])

    def sum_gradients(self, factors: Tensor | None, sums: Weights) -> None:
        if factors is None:
            self.formed, _ = self._form(group_of(self.x, 1), torch.float32)
        add_up(self.formed, factors, self.counts, self.block, sums)

    def _form(self, group: int, kept: torch.dtype) -> tuple[Formed, Tensor]:
        """The gradients of groups of records in this precision, and their (groups, parts) squared norms."""
        side, out, tile = self.block.side[0], self.sizes["OUT"], GRADIENTS["TILE_IN"]
        formed = Formed.of(self.block, self.x, self.real, out, group, kept)
        parts = triton.cdiv(side * side * PIXEL, tile), triton.cdiv(out, tile_of(out))
        squares = self.x.new_empty(len(formed.each), prod(parts), dtype=torch.float32)
        first_kernels.first_gradients_kernel[(len(formed.each), *parts)](
            self.x, self.dy, self.winner, formed.each, squares, self.counts, self.slots, group,
            **self.sizes, **GRADIENTS, REAL=self.real, SIDE=side, PLANAR=self.dy.is_contiguous(),
            SCALE=scale_of(self.dy, self.x.dtype), HELD=formed.held,
        )  # fmt: skip
        return formed, squares

"""A first convolution of few channels, stride 1 and 2 x 2 pooling, on images cut into 2 x 2 blocks, in float16.

Patches of three channels are read value by value, which is all that such a convolution waits for. A block of four
pixels is one position with 16 channels, read at once, and the four values that are pooled into one are computed from
the same blocks: for a 5 x 5 kernel on three channels 9 reads of 16 channels take the place of 100 reads of 3. Images
are cut once, before training. The weights of the four values are the same ones at other places, so that gradients are
summed over the places before their norm is taken.
"""

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.batched.blocks import Conv
from fedceo.training.cuda import first_kernels
from fedceo.training.cuda.convolution import Formed, add_up, form_gradients, held_times, pooled_size, scale_of, tile_of

BLOCK = 16
"""Channels of a block: four pixels of at most four."""
FORWARD = {"TILE": 128, "TILE_IN": 16, "num_warps": 4, "num_stages": 3}
GRADIENTS = {"TILE": 128, "TILE_IN": 64, "TILE_OUT": 128, "num_warps": 4, "num_stages": 2}
AT_ONCE = 2**13
"""Images that are cut at a time."""


def fits(block: Conv, channels: int) -> bool:
    """Whether a convolution of images of so many channels can be taken on blocks."""
    return 4 * channels <= BLOCK and block.pool == 2 and block.stride == (1, 1)


def as_blocks(images: Tensor, block: Conv) -> Tensor:
    """(n, rows, columns, BLOCK) float16 blocks of (n, channels, height, width) images, with their zero padding."""
    (down, right), (height, width) = block.padding, images.shape[2:]
    sides = (right, right + width % 2, down, down + height % 2)
    rows, columns = (height + 2 * down + height % 2) // 2, (width + 2 * right + width % 2) // 2
    blocks = images.new_zeros(len(images), rows, columns, BLOCK, dtype=torch.float16)
    most = torch.finfo(torch.float16).max
    for first in range(0, len(images), AT_ONCE):
        part = F.pad(images[first : first + AT_ONCE].clamp(-most, most), sides)
        cut = part.unflatten(3, (columns, 2)).unflatten(2, (rows, 2)).permute(0, 2, 4, 3, 5, 1).flatten(3)
        blocks[first : first + AT_ONCE, ..., : cut.shape[3]] = cut
    return blocks


class FirstConvPass:
    """x: (K, B, rows, columns, BLOCK), images as blocks."""

    def __init__(
        self, block: Conv, weights: Weights, x: Tensor, counts: Tensor, size: tuple[int, ...], feeds: torch.dtype
    ) -> None:
        """size: height and width of an image; feeds: the precision in which the next block takes images."""
        self.block, self.x, self.counts = block, x, counts
        weight = weights[block.weight]
        (clients, self.slots, height, width, _), (out, self.real, side) = x.shape, weight.shape[1:4]
        self.span = (side + 2) // 2
        self.rows, self.columns = pooled_size(block, *size)
        spread = x.new_empty(clients, self.span**2 * BLOCK, 4 * out)
        places = {"OUT": out, "REAL": self.real, "SIDE": side, "SPAN": self.span, "BLOCK": BLOCK}
        first_kernels.spread_weights_kernel[(clients, triton.cdiv(spread[0].numel(), 1024))](
            weight, spread, weight.stride(0), **places, TILE=1024
        )
        y = x.new_empty(clients, self.slots, self.rows, self.columns, out, dtype=feeds)
        self.winner = torch.empty_like(y, dtype=torch.int8)
        self.y, self.places = y.permute(0, 1, 4, 2, 3), places
        positions = self.rows * self.columns
        grid = (clients, triton.cdiv(self.slots * positions, FORWARD["TILE"]), triton.cdiv(out, tile_of(out)))
        bias = weights[block.bias] if block.bias else x
        first_kernels.first_forward_kernel[grid](
            x, spread, bias, y, self.winner, counts, self.slots, bias.stride(0),
            HEIGHT=height, WIDTH=width, ROWS=self.rows, COLUMNS=self.columns, OUT=out, SPAN=self.span, BLOCK=BLOCK,
            RELU=block.relu, BIAS=block.bias is not None, **FORWARD, TILE_OUT=tile_of(out),
        )  # fmt: skip

    def backward(self, dy: Tensor, needs_dx: bool) -> None:
        assert not needs_dx, "records need no gradient"
        dy = dy.permute(0, 1, 3, 4, 2).contiguous()
        clients, slots, rows, columns, out = dy.shape
        self.dz = self.x.new_empty(clients, slots, rows, columns, 4 * out)
        first_kernels.first_unpool_kernel[(clients * slots, triton.cdiv(self.dz[0, 0].numel(), 1024))](
            dy, self.winner, self.dz, self.counts, slots,
            POSITIONS=rows * columns, OUT=out, SCALE=scale_of(dy, self.x.dtype), TILE=1024,
        )  # fmt: skip

    def squared_norms(self) -> Tensor:
        self.formed = self._form(each=True)
        return self.formed.squares.view(self.x.shape[:2])

    def sum_gradients(self, factors: Tensor | None, sums: Weights) -> None:
        if factors is None:
            self.formed = self._form(each=False)
        add_up(self.formed, factors, (self.counts, self.slots), self.block, sums)

    def _form(self, each: bool) -> Formed:
        """The gradients of each record, or of groups of records, summed over a weight's places."""
        bias = self.block.bias is not None
        wide = form_gradients(
            self.x, self.dz, self.counts, None, GRADIENTS, each, bias, SIDE=self.span, STRIDE=1, PADDING=0
        )
        count, out = len(wide.each), self.places["OUT"]
        folded = wide.each.new_empty(count, self.places["SIDE"] ** 2 * self.real, out)
        biases, squares = (wide.squares.new_empty(count, size) for size in (out, 1))
        first_kernels.fold_kernel[(count,)](
            wide.each, wide.each_bias, folded, biases, squares, self.counts, count // len(self.counts), wide.group,
            **self.places, BIAS=bias, HELD=held_times(self.x.dtype), TILE=1024, TILE_OUT=tile_of(out),
        )  # fmt: skip
        return Formed(folded, biases, squares, wide.group, wide.held)

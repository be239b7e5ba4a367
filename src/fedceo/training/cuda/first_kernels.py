"""Triton kernels of a first convolution on images cut into 2 x 2 blocks (first_convolution.py says why).

A block of pixels is one position with BLOCK channels, four to a pixel: its REAL ones, zeros, and a one as the last. The
four outputs that are pooled into one are a convolution of SPAN x SPAN blocks with four times OUT channels, the offset
of the pooled value before the channel; a weight is zero where its pixel is outside the kernel. With q = offset + tap,
the tap's pixel lies in block q // 2 of the span, as its pixel q % 2, in each direction. The gradient of a weight on the
one is that of the bias.
"""

# ruff: noqa: N803
# mypy: ignore-errors

import triton
import triton.language as tl

from fedceo.training.cuda.convolution_kernels import fit, larger, pooled_place, store_pooled
from fedceo.training.cuda.gradient_kernels import store_rows


@triton.jit
def spread_weights_kernel(
    weight, spread, weight_client,
    OUT: tl.constexpr, REAL: tl.constexpr, SIDE: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """spread, (K, SPAN, SPAN, BLOCK, 4, OUT), becomes weight, (K, OUT, REAL, SIDE, SIDE), of its clients' rows."""
    SIZE: tl.constexpr = SPAN * SPAN * BLOCK * 4 * OUT
    client = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * TILE + tl.arange(0, TILE)
    out, offset, entry = index % OUT, index // OUT % 4, index // (4 * OUT)
    pixel, channel = entry % BLOCK // 4, entry % 4
    down = entry // (BLOCK * SPAN) * 2 + pixel // 2 - offset // 2
    right = entry // BLOCK % SPAN * 2 + pixel % 2 - offset % 2
    there = (index < SIZE) & (channel < REAL) & (down >= 0) & (down < SIDE) & (right >= 0) & (right < SIDE)
    at = ((out * REAL + channel) * SIDE + down) * SIDE + right
    w = tl.load(weight + client * weight_client + at, mask=there, other=0.0)
    tl.store(spread + client * SIZE + index, fit(w, spread.dtype.element_ty), mask=index < SIZE)


@triton.jit
def first_forward_kernel(
    x, weight, bias, y, winner, counts, slots, bias_row,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUT: tl.constexpr,
    SPAN: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr, BIAS: tl.constexpr, PLANAR: tl.constexpr,
    TILE: tl.constexpr, TILE_IN: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """One tile of a client's (record, pooled position) pairs; the four values that are pooled are columns."""
    POSITIONS: tl.constexpr = ROWS * COLUMNS
    SIZE: tl.constexpr = HEIGHT * WIDTH * BLOCK
    LINE: tl.constexpr = SPAN * BLOCK
    PARTS: tl.constexpr = (LINE + TILE_IN - 1) // TILE_IN
    client = tl.program_id(0)
    count = tl.load(counts + client).to(tl.int32)
    pair = tl.program_id(1) * TILE + tl.arange(0, TILE)
    column = tl.arange(0, 4 * TILE_OUT)
    out = tl.program_id(2) * TILE_OUT + column % TILE_OUT
    first = tl.program_id(1) * TILE // POSITIONS
    images = x + (client * slots + first).to(tl.int64) * SIZE
    corner = (pair // POSITIONS - first) * SIZE + (pair % POSITIONS // COLUMNS * WIDTH + pair % COLUMNS) * BLOCK
    within = tl.arange(0, TILE_IN)
    patches = corner[:, None] + within[None, :]
    weights = weight + client.to(tl.int64) * (SPAN * LINE * 4 * OUT)
    matrix = (within * (4 * OUT))[:, None] + (column // TILE_OUT * OUT + out)[None, :]
    real = pair < count * POSITIONS
    total = tl.zeros((TILE, 4 * TILE_OUT), tl.float32)
    if tl.program_id(1) * TILE < count * POSITIONS:
        for turn in range(0, SPAN * PARTS):
            down, part = turn // PARTS, turn % PARTS * TILE_IN
            inner = part + within < LINE
            patch = tl.load(
                images + (down * (WIDTH * BLOCK) + part) + patches, mask=real[:, None] & inner[None, :], other=0.0
            )
            w = tl.load(
                weights + (down * LINE + part) * (4 * OUT) + matrix,
                mask=inner[:, None] & (out < OUT)[None, :],
                other=0.0,
            )
            total = tl.dot(patch, w, total)
    offsets = tl.broadcast_to((column // TILE_OUT)[None, :], (TILE, 4 * TILE_OUT))
    best, which = tl.reduce(
        (tl.reshape(total, (TILE, 4, TILE_OUT)), tl.reshape(offsets, (TILE, 4, TILE_OUT))), 1, larger
    )
    out = tl.program_id(2) * TILE_OUT + tl.arange(0, TILE_OUT)
    store_pooled(y, winner, best, which, bias + client * bias_row, client, pair, out, count, slots,
                 POSITIONS, OUT, RELU, BIAS, PLANAR)  # fmt: skip


@triton.jit
def first_gradients_kernel(
    x, dy, winner, each, squares, counts, slots, group,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUT: tl.constexpr,
    REAL: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr,
    BIAS: tl.constexpr, PLANAR: tl.constexpr, SCALE: tl.constexpr, HELD: tl.constexpr,
    TILE: tl.constexpr, TILE_IN: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """Write one tile of the sum of the gradients of a `group` of a client's records, with its squared norm.

    A turn takes TILE pooled positions and one of the four values that are pooled there: the gradient of those that won
    with the pixels under their taps, a pixel's four channels at once. dy is multiplied by SCALE; gradients are written
    times HELD, norms are free of it.
    """
    POSITIONS: tl.constexpr = ROWS * COLUMNS
    STEPS: tl.constexpr = (POSITIONS + TILE - 1) // TILE
    PATCH: tl.constexpr = SIDE * SIDE * REAL
    groups = tl.cdiv(slots, group)
    which_group = tl.program_id(0)
    client, first = which_group // groups, which_group % groups * group
    last = tl.minimum(first + group, tl.load(counts + client).to(tl.int32))
    entry = tl.program_id(1) * TILE_IN + tl.arange(0, TILE_IN)
    tap, channel = entry // 4, entry % 4
    out = tl.program_id(2) * TILE_OUT + tl.arange(0, TILE_OUT)
    total = tl.zeros((TILE_IN, TILE_OUT), tl.float32)
    for turn in range(0, (last - first) * (4 * STEPS)):
        record = (client * slots + first + turn // (4 * STEPS)).to(tl.int64)
        offset, position = turn % 4, turn // 4 % STEPS * TILE + tl.arange(0, TILE)
        real = position < POSITIONS
        pooled = real[:, None] & (out < OUT)[None, :]
        gradients, winners = dy + record * (POSITIONS * OUT), winner + record * (POSITIONS * OUT)
        g = tl.load(gradients + pooled_place(position, out, POSITIONS, OUT, PLANAR), mask=pooled, other=0.0)
        won = tl.load(winners + pooled_place(position, out, POSITIONS, OUT, False), mask=pooled, other=-1) == offset
        if SCALE != 1:
            g = fit(SCALE * g, x.dtype.element_ty)
        down, right = tap // SIDE + offset // 2, tap % SIDE + offset % 2
        pixel = (down // 2 * WIDTH + right // 2) * BLOCK + (down % 2 * 2 + right % 2) * 4
        corner = (position // COLUMNS * WIDTH + position % COLUMNS) * BLOCK
        patch = tl.load(
            x + record * (HEIGHT * WIDTH * BLOCK) + (pixel + channel)[:, None] + corner[None, :],
            mask=(tap < SIDE * SIDE)[:, None] & real[None, :], other=0.0,
        )  # fmt: skip
        total = tl.dot(patch, tl.where(won, g, 0.0), total)
    if first < last:
        row, inside = tap * REAL + channel, (tap < SIDE * SIDE) & (channel < REAL)
        if BIAS:  # the one of the first tap
            row, inside = tl.where(entry == 3, PATCH, row), inside | (entry == 3)
        square = store_rows(each, which_group.to(tl.int64), total, row, out, inside, PATCH + BIAS, OUT)
        part, parts = tl.program_id(1) * tl.num_programs(2) + tl.program_id(2), tl.num_programs(1) * tl.num_programs(2)
        tl.store(squares + which_group.to(tl.int64) * parts + part, square / (HELD * HELD))

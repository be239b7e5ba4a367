"""Triton kernels of a first convolution on images cut into 2 x 2 blocks (first_convolution.py says why).

A block of pixels is one position with BLOCK channels, its four pixels' one after another and zeros behind them. The
four outputs that are pooled into one are a convolution of SPAN x SPAN blocks with four times OUT channels, the offset
of the pooled value before the channel; a weight is zero where its pixel is outside the kernel. With q = offset + tap,
the tap's pixel lies in block q // 2 of the span, as its pixel q % 2, in each direction.
"""

# ruff: noqa: N803
# mypy: ignore-errors

import triton
import triton.language as tl

from fedceo.training.cuda.convolution_kernels import fit, larger


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
    pixel, channel = entry % BLOCK // REAL, entry % BLOCK % REAL
    down = entry // (BLOCK * SPAN) * 2 + pixel // 2 - offset // 2
    right = entry // BLOCK % SPAN * 2 + pixel % 2 - offset % 2
    there = (index < SIZE) & (pixel < 4) & (down >= 0) & (down < SIDE) & (right >= 0) & (right < SIDE)
    at = ((out * REAL + channel) * SIDE + down) * SIDE + right
    w = tl.load(weight + client * weight_client + at, mask=there, other=0.0)
    tl.store(spread + client * SIZE + index, fit(w, spread.dtype.element_ty), mask=index < SIZE)


@triton.jit
def first_forward_kernel(
    x, weight, bias, y, winner, counts, slots, bias_row,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUT: tl.constexpr,
    SPAN: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr, BIAS: tl.constexpr,
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
    if BIAS:
        best += tl.load(bias + client * bias_row + out, mask=out < OUT, other=0.0)[None, :]
    inside = (pair < slots * POSITIONS)[:, None] & (out < OUT)[None, :]
    at = ((client * slots * POSITIONS + pair).to(tl.int64) * OUT)[:, None] + out[None, :]
    cut = (pair >= count * POSITIONS)[:, None] & inside
    if RELU:
        cut = cut | (best <= 0)
    tl.store(y + at, fit(tl.where(cut, 0.0, best), y.dtype.element_ty), mask=inside)
    tl.store(winner + at, tl.where(cut, -1, which).to(tl.int8), mask=inside)


@triton.jit
def first_unpool_kernel(
    dy, winner, dz, counts, slots, POSITIONS: tl.constexpr, OUT: tl.constexpr, SCALE: tl.constexpr, TILE: tl.constexpr
):
    """Write dz, (K, B, positions, 4, OUT): a pooled value's gradient times SCALE at its winner, zeros elsewhere."""
    SIZE: tl.constexpr = POSITIONS * 4 * OUT
    record = tl.program_id(0).to(tl.int64)
    if record % slots < tl.load(counts + record // slots):
        at = tl.program_id(1) * TILE + tl.arange(0, TILE)
        pooled = record * (POSITIONS * OUT) + at // (4 * OUT) * OUT + at % OUT
        g = SCALE * tl.load(dy + pooled, mask=at < SIZE).to(tl.float32)
        won = tl.load(winner + pooled, mask=at < SIZE) == at // OUT % 4
        tl.store(dz + record * SIZE + at, fit(tl.where(won, g, 0.0), dz.dtype.element_ty), mask=at < SIZE)


@triton.jit
def fold_kernel(
    each, each_bias, folded, folded_bias, squares, counts, groups, group,
    OUT: tl.constexpr, REAL: tl.constexpr, SIDE: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
    BIAS: tl.constexpr, HELD: tl.constexpr, TILE: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """Sum each (SPAN, SPAN, BLOCK, 4, OUT) gradient over the places of a weight, into (SIDE, SIDE, REAL, OUT).

    Also the bias's over the four values, and the squared norm of what is written, free of HELD.
    """
    SIZE: tl.constexpr = SIDE * SIDE * REAL * OUT
    which = tl.program_id(0).to(tl.int64)
    if which % groups * group < tl.load(counts + which // groups):
        square = tl.zeros((TILE,), tl.float32)
        gradients = each + which * (SPAN * SPAN * BLOCK * 4 * OUT)
        for start in range(0, SIZE, TILE):
            index = start + tl.arange(0, TILE)
            out, channel, tap = index % OUT, index // OUT % REAL, index // (OUT * REAL)
            total = tl.zeros((TILE,), tl.float32)
            for offset in tl.static_range(4):
                down, right = tap // SIDE + offset // 2, tap % SIDE + offset % 2
                block = down // 2 * SPAN + right // 2
                entry = block * BLOCK + (down % 2 * 2 + right % 2) * REAL + channel
                at = (entry * 4 + offset) * OUT + out
                total += tl.load(gradients + at, mask=index < SIZE, other=0.0).to(tl.float32)
            held = fit(total, folded.dtype.element_ty)
            tl.store(folded + which * SIZE + index, held, mask=index < SIZE)
            held = held.to(tl.float32)
            square += held * held
        all_squares = tl.sum(square, 0)
        if BIAS:
            for start in range(0, OUT, TILE_OUT):
                out = start + tl.arange(0, TILE_OUT)
                total = tl.zeros((TILE_OUT,), tl.float32)
                for offset in tl.static_range(4):
                    total += tl.load(each_bias + which * (4 * OUT) + offset * OUT + out, mask=out < OUT, other=0.0)
                tl.store(folded_bias + which * OUT + out, total, mask=out < OUT)
                all_squares += tl.sum(total * total, 0)
        tl.store(squares + which, all_squares / (HELD * HELD))

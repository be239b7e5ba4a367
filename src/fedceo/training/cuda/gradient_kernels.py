"""Triton kernels: gradients of a convolution's weight and bias, of single records or of groups of them, and their sums.

A gradient is (taps * channels, out), with the bias's as one row more. Those of single records are kept in the precision
of the images, and their norms are of what is kept; those of groups are float32. See convolution_kernels.py for images.
"""

# ruff: noqa: N803, SIM102
# mypy: ignore-errors

import triton
import triton.language as tl

from fedceo.training.cuda.convolution_kernels import fit


@triton.jit
def load_outputs(dz, record, begin, line, column, out,
                 ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUT: tl.constexpr):  # fmt: skip
    """The gradients at (line, column) positions of a record, from the line `begin`, (positions, outs)."""
    real = (begin + line < ROWS) & (column < COLUMNS)
    at = (((begin + line) * COLUMNS + column) * OUT)[:, None] + out[None, :]
    return tl.load(dz + record * (ROWS * COLUMNS * OUT) + at, mask=real[:, None] & (out < OUT)[None, :], other=0.0)


@triton.jit
def load_patches(
    x, record, begin, line, column, entry,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
):  # fmt: skip
    """The entries of patches at (line, column) positions of a record, from the line `begin`, (entries, positions)."""
    down, right = entry // (CHANNELS * SIDE), entry // CHANNELS % SIDE
    shift = down * (WIDTH * CHANNELS) + entry % (CHANNELS * SIDE)
    corner = (begin * STRIDE - PADDING) * (WIDTH * CHANNELS) - PADDING * CHANNELS
    there = (entry < SIDE * SIDE * CHANNELS)[:, None] & ((begin + line < ROWS) & (column < COLUMNS))[None, :]
    if PADDING > 0:
        r = down[:, None] + ((begin + line) * STRIDE - PADDING)[None, :]
        c = right[:, None] + (column * STRIDE - PADDING)[None, :]
        there = there & (r >= 0) & (r < HEIGHT) & (c >= 0) & (c < WIDTH)
    at = shift[:, None] + ((line * WIDTH + column) * (STRIDE * CHANNELS))[None, :]
    return tl.load(x + record * (HEIGHT * WIDTH * CHANNELS) + corner + at, mask=there, other=0.0)


@triton.jit
def store_rows(each, which, total, row, out, inside, ROWS: tl.constexpr, OUT: tl.constexpr):
    """Write rows of a gradient as they are kept; returns the squared norm of what was written."""
    held = fit(total, each.dtype.element_ty)
    inside = inside[:, None] & (out < OUT)[None, :]
    tl.store(each + which * (ROWS * OUT) + (row * OUT)[:, None] + out[None, :], held, mask=inside)
    held = tl.where(inside, held.to(tl.float32), 0.0)
    return tl.sum(tl.sum(held * held, 1), 0)


@triton.jit
def store_bias(each, which, total, out, ROWS: tl.constexpr, OUT: tl.constexpr):
    """Write the bias's gradient, the last row; returns the squared norm of what was written."""
    held = fit(total, each.dtype.element_ty)
    tl.store(each + which * (ROWS * OUT) + (ROWS - 1) * OUT + out, held, mask=out < OUT)
    held = held.to(tl.float32)  # beyond the last channel there are zeros
    return tl.sum(held * held, 0)


@triton.jit
def record_gradients_kernel(
    x, dz, each, squares, counts, slots,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUT: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BIAS: tl.constexpr, HELD: tl.constexpr, PRECISION: tl.constexpr,
    LANE: tl.constexpr, TILE: tl.constexpr, TILE_IN: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """Write each record's gradient and its squared norm, a program for each tile of a record's channels.

    A turn takes TILE positions, whole lines of which each has LANE, COLUMNS or more, for TILE_IN entries of the
    patches. Where a record's positions are one turn, their gradients are read once for all entries. Gradients are
    written times HELD, as dz is given; norms are free of it.
    """
    PATCH: tl.constexpr = SIDE * SIDE * CHANNELS
    LINES: tl.constexpr = TILE // LANE
    STEPS: tl.constexpr = (ROWS + LINES - 1) // LINES
    PARTS: tl.constexpr = (PATCH + TILE_IN - 1) // TILE_IN
    record = tl.program_id(0).to(tl.int64)
    if record % slots < tl.load(counts + record // slots):
        out = tl.program_id(1) * TILE_OUT + tl.arange(0, TILE_OUT)
        line, column = tl.arange(0, TILE) // LANE, tl.arange(0, TILE) % LANE
        column = tl.where(line < LINES, column, COLUMNS)  # a rest that is no whole line is outside
        square = 0.0
        if STEPS == 1:
            g = load_outputs(dz, record, 0, line, column, out, ROWS, COLUMNS, OUT)
            if BIAS:
                square += store_bias(each, record, tl.sum(g.to(tl.float32), 0), out, PATCH + 1, OUT)
        elif BIAS:
            total_bias = tl.zeros((TILE_OUT,), tl.float32)
            for step in range(0, STEPS):
                g = load_outputs(dz, record, step * LINES, line, column, out, ROWS, COLUMNS, OUT)
                total_bias += tl.sum(g.to(tl.float32), 0)
            square += store_bias(each, record, total_bias, out, PATCH + 1, OUT)
        total = tl.zeros((TILE_IN, TILE_OUT), tl.float32)
        for turn in range(0, PARTS * STEPS):
            begin = turn % STEPS * LINES
            entry = turn // STEPS * TILE_IN + tl.arange(0, TILE_IN)
            patch = load_patches(x, record, begin, line, column, entry,
                                 HEIGHT, WIDTH, CHANNELS, ROWS, COLUMNS, SIDE, STRIDE, PADDING)  # fmt: skip
            if STEPS == 1:
                total = tl.dot(patch, g, input_precision=PRECISION)
                square += store_rows(each, record, total, entry, out, entry < PATCH, PATCH + BIAS, OUT)
            else:
                g = load_outputs(dz, record, begin, line, column, out, ROWS, COLUMNS, OUT)
                total = tl.dot(patch, g, total, input_precision=PRECISION)
                if turn % STEPS == STEPS - 1:
                    square += store_rows(each, record, total, entry, out, entry < PATCH, PATCH + BIAS, OUT)
                    total = tl.zeros((TILE_IN, TILE_OUT), tl.float32)
        tl.store(squares + record * tl.num_programs(1) + tl.program_id(1), square / (HELD * HELD))


@triton.jit
def group_gradients_kernel(
    x, dz, factors, each, counts, slots, group,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUT: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BIAS: tl.constexpr, WEIGHTED: tl.constexpr, PRECISION: tl.constexpr,
    LANE: tl.constexpr, TILE: tl.constexpr, TILE_IN: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """Write the sum of the gradients of a `group` of a client's records, one tile of it.

    Turns are as in record_gradients_kernel, all records' for one tile of entries. WEIGHTED multiplies each record's
    gradient by its factor, in float32, and drops it where that is 0.
    """
    PATCH: tl.constexpr = SIDE * SIDE * CHANNELS
    LINES: tl.constexpr = TILE // LANE
    STEPS: tl.constexpr = (ROWS + LINES - 1) // LINES
    groups = tl.cdiv(slots, group)
    which_group = tl.program_id(0)
    client, first = which_group // groups, which_group % groups * group
    last = tl.minimum(first + group, tl.load(counts + client).to(tl.int32))
    entry = tl.program_id(1) * TILE_IN + tl.arange(0, TILE_IN)
    out = tl.program_id(2) * TILE_OUT + tl.arange(0, TILE_OUT)
    line, column = tl.arange(0, TILE) // LANE, tl.arange(0, TILE) % LANE
    column = tl.where(line < LINES, column, COLUMNS)
    total = tl.zeros((TILE_IN, TILE_OUT), tl.float32)
    total_bias = tl.zeros((TILE_OUT,), tl.float32)
    for turn in range(0, (last - first) * STEPS):
        record = (client * slots + first + turn // STEPS).to(tl.int64)
        begin = turn % STEPS * LINES
        g = load_outputs(dz, record, begin, line, column, out, ROWS, COLUMNS, OUT)
        patch = load_patches(x, record, begin, line, column, entry,
                             HEIGHT, WIDTH, CHANNELS, ROWS, COLUMNS, SIDE, STRIDE, PADDING)  # fmt: skip
        if WEIGHTED:
            factor = tl.load(factors + record)
            one = tl.dot(patch, g, input_precision=PRECISION)
            total += tl.where(factor > 0, factor * one, 0.0)  # it may be NaN, and 0 * NaN is NaN
            if BIAS:
                if tl.program_id(1) == 0:
                    total_bias += tl.where(factor > 0, factor * tl.sum(g.to(tl.float32), 0), 0.0)
        else:
            total = tl.dot(patch, g, total, input_precision=PRECISION)
            if BIAS:
                if tl.program_id(1) == 0:
                    total_bias += tl.sum(g.to(tl.float32), 0)
    if first < last:
        which = which_group.to(tl.int64)
        store_rows(each, which, total, entry, out, entry < PATCH, PATCH + BIAS, OUT)
        if BIAS:
            if tl.program_id(1) == 0:
                store_bias(each, which, total_bias, out, PATCH + 1, OUT)


@triton.jit
def weighted_sum_kernel(
    each, factors, weight, bias, counts, slots, group, weight_client, bias_client,
    CHANNELS: tl.constexpr, OUT: tl.constexpr, TAPS: tl.constexpr,
    BIAS: tl.constexpr, WEIGHTED: tl.constexpr, HELD: tl.constexpr,
    TILE: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The sums over groups of factor * each / HELD: weight[k] in torch's order, (OUT, CHANNELS, TAPS), and bias[k]."""
    WEIGHTS: tl.constexpr = TAPS * CHANNELS * OUT
    SIZE: tl.constexpr = WEIGHTS + BIAS * OUT
    client = tl.program_id(0)
    index = tl.program_id(1) * TILE + tl.arange(0, TILE)
    groups = tl.cdiv(slots, group)
    filled = tl.cdiv(tl.load(counts + client), group)
    total = tl.zeros((TILE,), tl.float32)
    for start in range(0, filled, AT_ONCE):
        which = start + tl.arange(0, AT_ONCE)
        at = (client * groups + which).to(tl.int64)[:, None] * SIZE + index[None, :]
        gradient = tl.load(each + at, mask=(which < filled)[:, None] & (index < SIZE)[None, :], other=0.0)
        gradient = gradient.to(tl.float32)
        if WEIGHTED:
            factor = tl.load(factors + client * slots + which, mask=which < filled, other=0.0)[:, None]
            gradient = tl.where(factor > 0, factor * gradient, 0.0)  # it may be NaN, and 0 * NaN is NaN
        total += tl.sum(gradient, 0)
    total /= HELD
    entry = index // OUT
    to = (index % OUT * CHANNELS + entry % CHANNELS) * TAPS + entry // CHANNELS
    tl.store(weight + client.to(tl.int64) * weight_client + to, total, mask=index < WEIGHTS)
    if BIAS:
        to = bias + client.to(tl.int64) * bias_client + index - WEIGHTS
        tl.store(to, total, mask=(index >= WEIGHTS) & (index < SIZE))

"""Triton kernels: convolutions of K clients at once, with their ReLU and max-pooling.

A convolution is one implicit matrix product: patches are read from the images without being copied out, and of the
pooled values only the offset of the winner is kept, -1 where ReLU cut it off, which is all that the backward pass
needs. Images have their channels last in memory. Slots beyond a client's count, which hold filling, are skipped. The
shapes of all arguments are in the table of fedceo.training.batched.

Images, weights and gradients between kernels are float32 or float16; every sum is float32. A gradient in float16 is
held times a power of two, so that small ones stay in its range, and what is beyond that range is held at its edge.
"""

# ruff: noqa: N803
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _fit(value, to):
    """The float32 value as `to` can hold it: infinities of float16 would become NaN in the next product."""
    if to.dtype.element_ty == tl.float16:
        most: tl.constexpr = 65504.0
        value = tl.where(value > most, most, tl.where(value < -most, -most, value))  # NaN stays
    return value.to(to.dtype.element_ty)


@triton.jit
def _larger(value, offset, other_value, other_offset):
    """The larger of two values with its offset; of equal ones the first, and NaN before any, as torch pools."""
    takes = (other_value > value) | ((other_value != other_value) & (value == value))
    takes = takes | ((other_value == value) & (other_offset < offset))
    return tl.where(takes, other_value, value), tl.where(takes, other_offset, offset)


@triton.jit
def forward_kernel(
    x, weight, bias, y, winner, counts, slots, bias_row,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUT: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, POOL: tl.constexpr, OFFSETS: tl.constexpr,
    RELU: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, TILE_IN: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """One tile of a client's (record, pooled position) pairs; weight is (K, taps, CHANNELS, OUT).

    The POOL^2 values that are pooled, filled up to OFFSETS, a power of two, are rows of one product, so that weights
    are read once for all of them. They are TILE rows apart: with 16 rows to a warp, one thread compares them.
    """
    PATCH: tl.constexpr = SIDE * SIDE * CHANNELS
    POSITIONS: tl.constexpr = ROWS * COLUMNS
    client = tl.program_id(0)
    count = tl.load(counts + client).to(tl.int32)
    item = tl.arange(0, OFFSETS * TILE)
    pair_of, offset = tl.program_id(1) * TILE + item % TILE, item // TILE
    out = tl.program_id(2) * TILE_OUT + tl.arange(0, TILE_OUT)
    top = (pair_of % POSITIONS // COLUMNS * POOL + offset // POOL) * STRIDE - PADDING
    left = (pair_of % COLUMNS * POOL + offset % POOL) * STRIDE - PADDING
    record = (client * slots + pair_of // POSITIONS).to(tl.int64)
    corner = record * (HEIGHT * WIDTH * CHANNELS) + (top * WIDTH + left) * CHANNELS
    real = (pair_of < count * POSITIONS) & (offset < POOL * POOL)
    total = tl.zeros((OFFSETS * TILE, TILE_OUT), tl.float32)
    if tl.program_id(1) * TILE < count * POSITIONS:
        for start in range(0, PATCH, TILE_IN):
            entry = start + tl.arange(0, TILE_IN)
            down, right, channel = entry // (CHANNELS * SIDE), entry // CHANNELS % SIDE, entry % CHANNELS
            there = real[:, None] & (entry < PATCH)[None, :]
            if PADDING > 0:
                r, c = top[:, None] + down[None, :], left[:, None] + right[None, :]
                there = there & (r >= 0) & (r < HEIGHT) & (c >= 0) & (c < WIDTH)
            shift = (down * WIDTH + right) * CHANNELS + channel
            patch = tl.load(x + (corner[:, None] + shift[None, :]), mask=there, other=0.0)
            w = tl.load(
                weight + (client * PATCH + entry)[:, None] * OUT + out[None, :],
                mask=(entry < PATCH)[:, None] & (out < OUT)[None, :], other=0.0,
            )  # fmt: skip
            total = tl.dot(patch, w, total, input_precision=PRECISION)
    if OFFSETS > POOL * POOL:
        total = tl.where((offset < POOL * POOL)[:, None], total, float("-inf"))
    offsets = tl.broadcast_to(offset[:, None], (OFFSETS * TILE, TILE_OUT))
    best, which = tl.reduce(
        (tl.reshape(total, (OFFSETS, TILE, TILE_OUT)), tl.reshape(offsets, (OFFSETS, TILE, TILE_OUT))), 0, _larger
    )
    if BIAS:
        best += tl.load(bias + client * bias_row + out, mask=out < OUT, other=0.0)[None, :]
    pair = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (pair < slots * POSITIONS)[:, None] & (out < OUT)[None, :]
    at = ((client * slots * POSITIONS + pair).to(tl.int64) * OUT)[:, None] + out[None, :]
    cut = (pair >= count * POSITIONS)[:, None] & inside
    if RELU:
        cut = cut | (best <= 0)
    tl.store(y + at, _fit(tl.where(cut, 0.0, best), y), mask=inside)
    tl.store(winner + at, tl.where(cut, -1, which).to(tl.int8), mask=inside)


@triton.jit
def unpool_kernel(
    dy, winner, dz, counts, slots,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUT: tl.constexpr, POOL: tl.constexpr, SCALE: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Write dz, the gradient before pooling and ReLU: a pooled value's gradient goes to its winner, zeros elsewhere.

    Gradients are multiplied by SCALE on the way.
    """
    SIZE: tl.constexpr = ROWS * COLUMNS * POOL * POOL * OUT
    record = tl.program_id(0).to(tl.int64)
    if record % slots < tl.load(counts + record // slots):
        at = tl.program_id(1) * TILE + tl.arange(0, TILE)
        row, column = at // (OUT * COLUMNS * POOL), at // OUT % (COLUMNS * POOL)
        pooled = record * (ROWS * COLUMNS * OUT) + (row // POOL * COLUMNS + column // POOL) * OUT + at % OUT
        g = tl.load(dy + pooled, mask=at < SIZE)
        won = tl.load(winner + pooled, mask=at < SIZE) == row % POOL * POOL + column % POOL
        tl.store(dz + record * SIZE + at, _fit(tl.where(won, SCALE * g.to(tl.float32), 0.0), dz), mask=at < SIZE)


@triton.jit
def weight_gradients_kernel(
    x, dy, winner, factors, each, each_bias, squares, counts, slots, group,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUT: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, POOL: tl.constexpr, OFFSETS: tl.constexpr,
    BIAS: tl.constexpr, WEIGHTED: tl.constexpr, SCALE: tl.constexpr, HELD: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, TILE_IN: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """Write the gradients of weight and bias, each summed over a `group` of records, and their squared norms.

    Pooled positions and the values pooled there are the rows of a product, as in `forward_kernel`; dy goes to the value
    that won, times SCALE; gradients are written times HELD, of which the norms are free. WEIGHTED multiplies each record's gradient by its factor, in float32, and drops it where that is 0.
    """
    PATCH: tl.constexpr = SIDE * SIDE * CHANNELS
    POSITIONS: tl.constexpr = ROWS * COLUMNS
    STEPS: tl.constexpr = (POSITIONS + TILE - 1) // TILE
    groups = tl.cdiv(slots, group)
    which_group = tl.program_id(0)
    client, first = which_group // groups, which_group % groups * group
    last = tl.minimum(first + group, tl.load(counts + client).to(tl.int32))
    entry = tl.program_id(1) * TILE_IN + tl.arange(0, TILE_IN)
    out = tl.program_id(2) * TILE_OUT + tl.arange(0, TILE_OUT)
    down, right, channel = entry // (CHANNELS * SIDE), entry // CHANNELS % SIDE, entry % CHANNELS
    shift = (down * WIDTH + right) * CHANNELS + channel
    item = tl.arange(0, OFFSETS * TILE)
    offset = item // TILE
    total = tl.zeros((TILE_IN, TILE_OUT), tl.float32)
    total_bias = tl.zeros((TILE_OUT,), tl.float32)
    for turn in range(0, (last - first) * STEPS):
        record = (client * slots + first + turn // STEPS).to(tl.int64)
        pooled = turn % STEPS * TILE + item % TILE
        real = (pooled < POSITIONS) & (offset < POOL * POOL)
        at = record * (POSITIONS * OUT) + (pooled * OUT)[:, None] + out[None, :]
        inside = real[:, None] & (out < OUT)[None, :]
        won = tl.load(winner + at, mask=inside, other=-1) == offset[:, None]
        g = tl.where(won, SCALE * tl.load(dy + at, mask=inside, other=0.0).to(tl.float32), 0.0)
        top = (pooled // COLUMNS * POOL + offset // POOL) * STRIDE - PADDING
        left = (pooled % COLUMNS * POOL + offset % POOL) * STRIDE - PADDING
        corner = record * (HEIGHT * WIDTH * CHANNELS) + (top * WIDTH + left) * CHANNELS
        there = (entry < PATCH)[:, None] & real[None, :]
        if PADDING > 0:
            r, c = down[:, None] + top[None, :], right[:, None] + left[None, :]
            there = there & (r >= 0) & (r < HEIGHT) & (c >= 0) & (c < WIDTH)
        patch = tl.load(x + (shift[:, None] + corner[None, :]), mask=there, other=0.0)
        held = _fit(g, x)
        if WEIGHTED:
            factor = tl.load(factors + record)
            one = tl.dot(patch, held, input_precision=PRECISION)
            total += tl.where(factor > 0, factor * one, 0.0)  # it may be NaN, and 0 * NaN is NaN
            if BIAS:
                total_bias += tl.where(factor > 0, factor * tl.sum(held.to(tl.float32), 0), 0.0)
        else:
            total = tl.dot(patch, held, total, input_precision=PRECISION)
            if BIAS:
                total_bias += tl.sum(held.to(tl.float32), 0)
    inside = (entry < PATCH)[:, None] & (out < OUT)[None, :] & (first < last)
    stored = _fit(total, each)
    tl.store(each + (which_group.to(tl.int64) * PATCH + entry)[:, None] * OUT + out[None, :], stored, mask=inside)
    total = stored.to(tl.float32)
    square = tl.sum(tl.sum(total * total, 1), 0)  # beyond the edges there are zeros
    if BIAS and tl.program_id(1) == 0:
        stored_bias = _fit(total_bias, each_bias)
        tl.store(each_bias + which_group * OUT + out, stored_bias, mask=out < OUT)
        total_bias = stored_bias.to(tl.float32)
        square += tl.sum(total_bias * total_bias, 0)
    part = tl.program_id(1) * tl.num_programs(2) + tl.program_id(2)
    tl.store(squares + which_group * (tl.num_programs(1) * tl.num_programs(2)) + part, square / (HELD * HELD))


@triton.jit
def input_gradients_kernel(
    dz, weight, dx, counts, slots,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUT: tl.constexpr,
    SIDE: tl.constexpr, PADDING: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, TILE_IN: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """One tile of a client's (record, input position) pairs, for stride 1.

    The gradient at an input position is the sum over the taps of the output positions that the input went into.
    """
    AREA: tl.constexpr = HEIGHT * WIDTH
    PARTS: tl.constexpr = (OUT + TILE_OUT - 1) // TILE_OUT
    client = tl.program_id(0)
    pair = tl.program_id(1) * TILE + tl.arange(0, TILE)
    row, column = pair % AREA // WIDTH + PADDING, pair % WIDTH + PADDING
    channel = tl.program_id(2) * TILE_IN + tl.arange(0, TILE_IN)
    at = ((client * slots * AREA + pair).to(tl.int64) * CHANNELS)[:, None] + channel[None, :]
    inside = (pair < slots * AREA)[:, None] & (channel < CHANNELS)[None, :]
    count = tl.load(counts + client).to(tl.int32)
    total = tl.zeros((TILE, TILE_IN), tl.float32)
    if tl.program_id(1) * TILE < count * AREA:
        real = pair < count * AREA
        record = (client * slots + pair // AREA).to(tl.int64)
        base = record * (ROWS * COLUMNS * OUT) + (row * COLUMNS + column) * OUT
        for turn in range(0, SIDE * SIDE * PARTS):
            tap, out = turn // PARTS, turn % PARTS * TILE_OUT + tl.arange(0, TILE_OUT)
            r, c = row - tap // SIDE, column - tap % SIDE
            there = real & (r >= 0) & (r < ROWS) & (c >= 0) & (c < COLUMNS)
            shift = out - (tap // SIDE * COLUMNS + tap % SIDE) * OUT
            g = tl.load(dz + (base[:, None] + shift[None, :]), mask=there[:, None] & (out < OUT)[None, :], other=0.0)
            w = tl.load(
                weight + ((client * SIDE * SIDE + tap) * CHANNELS + channel)[None, :] * OUT + out[:, None],
                mask=(out < OUT)[:, None] & (channel < CHANNELS)[None, :], other=0.0,
            )  # fmt: skip
            total = tl.dot(g, w, total, input_precision=PRECISION)
    tl.store(dx + at, _fit(total, dx), mask=inside)


@triton.jit
def weighted_sum_kernel(
    each, factors, out, counts, slots, group, out_client,
    CHANNELS: tl.constexpr, OUT: tl.constexpr, TAPS: tl.constexpr, WEIGHTED: tl.constexpr, HELD: tl.constexpr,
    TILE: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """out[k] = sum over groups of factor * each / HELD, from (TAPS, CHANNELS, OUT) to torch's (OUT, CHANNELS, TAPS)."""
    SIZE: tl.constexpr = TAPS * CHANNELS * OUT
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
    entry = index // OUT
    to = (index % OUT * CHANNELS + entry % CHANNELS) * TAPS + entry // CHANNELS
    tl.store(out + client.to(tl.int64) * out_client + to, total / HELD, mask=index < SIZE)

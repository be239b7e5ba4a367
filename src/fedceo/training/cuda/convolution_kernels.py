"""Triton kernels: convolutions of K clients at once, with their ReLU and max-pooling.

A convolution is one implicit matrix product: patches are read from the images without being copied out, and of the
pooled values only the offset of the winner is kept, -1 where ReLU cut it off, which is all that the backward pass
needs. Images have their channels last in memory. Slots beyond a client's count, which hold filling, are skipped. The
shapes of all arguments are in the table of fedceo.training.batched.

Images, weights and gradients between kernels are float32 or float16; every sum is float32. A gradient in float16 is
held times a power of two, so that small ones stay in its range, and what is beyond that range is held at its edge.
"""

# ruff: noqa: N803, SIM102, SIM300
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def fit(value, KIND: tl.constexpr):
    """The float32 value in this precision: infinities of float16 would become NaN in the next product."""
    if KIND == tl.float16:
        most: tl.constexpr = 65504.0
        value = tl.where(value > most, most, tl.where(value < -most, -most, value))  # NaN stays
    return value.to(KIND)


@triton.jit
def larger(value, offset, other_value, other_offset):
    """The larger of two values with its offset; of equal ones the first, and NaN before any, as torch pools."""
    takes = (other_value > value) | ((other_value != other_value) & (value == value))
    takes = takes | ((other_value == value) & (other_offset < offset))
    return tl.where(takes, other_value, value), tl.where(takes, other_offset, offset)


@triton.jit
def pack_weights_kernel(
    weight, packed, weight_client, OUT: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr,
    TILE: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """packed, (K, TAPS, CHANNELS, OUT), becomes weight, (K, OUT, CHANNELS, TAPS), of clients `weight_client` apart."""
    client = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * TILE + tl.arange(0, TILE)
    out = tl.program_id(2) * TILE_OUT + tl.arange(0, TILE_OUT)
    inside = (index < CHANNELS * TAPS)[None, :] & (out < OUT)[:, None]
    w = tl.load(weight + client * weight_client + (out * (CHANNELS * TAPS))[:, None] + index[None, :], mask=inside)
    row = index % TAPS * CHANNELS + index // TAPS
    to = packed + client * (TAPS * CHANNELS * OUT) + (row * OUT)[:, None] + out[None, :]
    tl.store(to, fit(tl.trans(w), packed.dtype.element_ty), mask=tl.trans(inside))


@triton.jit
def forward_kernel(
    x, weight, bias, y, winner, counts, slots, bias_row,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUT: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    POOL: tl.constexpr, OFFSETS: tl.constexpr,
    RELU: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, TILE_IN: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """One tile of a client's (record, pooled position) pairs; weight is (K, taps, CHANNELS, OUT).

    The POOL^2 values that are pooled, filled up to OFFSETS, a power of two, are rows of one product, so that weights
    are read once for all of them. They are TILE rows apart: with 16 rows to a warp, one thread compares them.
    """
    POSITIONS: tl.constexpr = ROWS * COLUMNS
    SIZE: tl.constexpr = HEIGHT * WIDTH * CHANNELS
    PARTS: tl.constexpr = (SIDE * CHANNELS + TILE_IN - 1) // TILE_IN
    client = tl.program_id(0)
    count = tl.load(counts + client).to(tl.int32)
    item = tl.arange(0, OFFSETS * TILE)
    pair_of, offset = tl.program_id(1) * TILE + item % TILE, item // TILE
    out = tl.program_id(2) * TILE_OUT + tl.arange(0, TILE_OUT)
    top = (pair_of % POSITIONS // COLUMNS * POOL + offset // POOL) * STRIDE - PADDING
    left = (pair_of % COLUMNS * POOL + offset % POOL) * STRIDE - PADDING
    first = tl.program_id(1) * TILE // POSITIONS
    images = x + (client * slots + first).to(tl.int64) * SIZE
    corner = (pair_of // POSITIONS - first) * SIZE + (top * WIDTH + left) * CHANNELS
    real = (pair_of < count * POSITIONS) & (offset < POOL * POOL)
    within = tl.arange(0, TILE_IN)
    patches = corner[:, None] + within[None, :]
    weights = weight + client.to(tl.int64) * (SIDE * SIDE * CHANNELS * OUT)
    total = tl.zeros((OFFSETS * TILE, TILE_OUT), tl.float32)
    if tl.program_id(1) * TILE < count * POSITIONS:
        for turn in range(0, SIDE * PARTS):
            down, part = turn // PARTS, turn % PARTS * TILE_IN
            right = (part + within) // CHANNELS
            there = real[:, None] & (right < SIDE)[None, :]
            if PADDING > 0:
                r, c = (top + down)[:, None], left[:, None] + right[None, :]
                there = there & (r >= 0) & (r < HEIGHT) & (c >= 0) & (c < WIDTH)
            patch = tl.load(images + (down * (WIDTH * CHANNELS) + part) + patches, mask=there, other=0.0)
            w = tl.load(
                weights + (down * (SIDE * CHANNELS) + part) * OUT + (within * OUT)[:, None] + out[None, :],
                mask=(right < SIDE)[:, None] & (out < OUT)[None, :], other=0.0,
            )  # fmt: skip
            total = tl.dot(patch, w, total, input_precision=PRECISION)
    if OFFSETS > POOL * POOL:
        total = tl.where((offset < POOL * POOL)[:, None], total, float("-inf"))
    offsets = tl.broadcast_to(offset[:, None], (OFFSETS * TILE, TILE_OUT))
    best, which = tl.reduce(
        (tl.reshape(total, (OFFSETS, TILE, TILE_OUT)), tl.reshape(offsets, (OFFSETS, TILE, TILE_OUT))), 0, larger
    )
    if BIAS:
        best += tl.load(bias + client * bias_row + out, mask=out < OUT, other=0.0)[None, :]
    pair = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (pair < slots * POSITIONS)[:, None] & (out < OUT)[None, :]
    at = ((client * slots * POSITIONS + pair).to(tl.int64) * OUT)[:, None] + out[None, :]
    cut = (pair >= count * POSITIONS)[:, None] & inside
    if RELU:
        cut = cut | (best <= 0)
    tl.store(y + at, fit(tl.where(cut, 0.0, best), y.dtype.element_ty), mask=inside)
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
        g = tl.where(won, SCALE * g.to(tl.float32), 0.0)
        tl.store(dz + record * SIZE + at, fit(g, dz.dtype.element_ty), mask=at < SIZE)


@triton.jit
def weight_gradients_kernel(
    x, dz, factors, each, each_bias, squares, counts, slots, group,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUT: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BIAS: tl.constexpr, EACH: tl.constexpr, WEIGHTED: tl.constexpr, HELD: tl.constexpr, PRECISION: tl.constexpr,
    LANE: tl.constexpr, TILE: tl.constexpr, TILE_IN: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """Write the gradients of weight and bias of a `group` of records: EACH one's with its squared norm, or their sum.

    A turn takes TILE positions of a record, whole lines of which each has LANE, COLUMNS or more. Gradients are written
    times HELD, as dz is given; norms are free of it. WEIGHTED multiplies each record's gradient by its factor, in
    float32, and drops it where that is 0.
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
    down, right = entry // (CHANNELS * SIDE), entry // CHANNELS % SIDE
    shift = down * (WIDTH * CHANNELS) + entry % (CHANNELS * SIDE)
    inner = entry < PATCH
    place = entry[:, None] * OUT + out[None, :]
    inside = inner[:, None] & (out < OUT)[None, :]
    part = tl.program_id(1) * tl.num_programs(2) + tl.program_id(2)
    parts = tl.num_programs(1) * tl.num_programs(2)
    line, column = tl.arange(0, TILE) // LANE, tl.arange(0, TILE) % LANE
    known = (line < LINES) & (column < COLUMNS)
    outputs = ((line * COLUMNS + column) * OUT)[:, None] + out[None, :]
    patches = shift[:, None] + ((line * WIDTH + column) * (STRIDE * CHANNELS))[None, :]
    total = tl.zeros((TILE_IN, TILE_OUT), tl.float32)
    total_bias = tl.zeros((TILE_OUT,), tl.float32)
    for turn in range(0, (last - first) * STEPS):
        record = (client * slots + first + turn // STEPS).to(tl.int64)
        begin = turn % STEPS * LINES
        real = known & (begin + line < ROWS)
        gradients = dz + record * (ROWS * COLUMNS * OUT) + begin * (COLUMNS * OUT)
        g = tl.load(gradients + outputs, mask=real[:, None] & (out < OUT)[None, :], other=0.0)
        corner = (begin * STRIDE - PADDING) * (WIDTH * CHANNELS) - PADDING * CHANNELS
        there = inner[:, None] & real[None, :]
        if PADDING > 0:
            r = down[:, None] + ((begin + line) * STRIDE - PADDING)[None, :]
            c = right[:, None] + (column * STRIDE - PADDING)[None, :]
            there = there & (r >= 0) & (r < HEIGHT) & (c >= 0) & (c < WIDTH)
        patch = tl.load(x + record * (HEIGHT * WIDTH * CHANNELS) + corner + patches, mask=there, other=0.0)
        if WEIGHTED:
            factor = tl.load(factors + record)
            one = tl.dot(patch, g, input_precision=PRECISION)
            total += tl.where(factor > 0, factor * one, 0.0)  # it may be NaN, and 0 * NaN is NaN
            if BIAS:
                total_bias += tl.where(factor > 0, factor * tl.sum(g.to(tl.float32), 0), 0.0)
        else:
            if EACH and STEPS == 1:
                total = tl.dot(patch, g, input_precision=PRECISION)
            else:
                total = tl.dot(patch, g, total, input_precision=PRECISION)
            if BIAS:
                total_bias += tl.sum(g.to(tl.float32), 0)
        if EACH:
            if turn % STEPS == STEPS - 1:
                square = _store(each, each_bias, record, total, total_bias, place, out, inside, PATCH, OUT, BIAS)
                tl.store(squares + record * parts + part, square / (HELD * HELD))
                total = tl.zeros((TILE_IN, TILE_OUT), tl.float32)
                total_bias = tl.zeros((TILE_OUT,), tl.float32)
    if not EACH:
        if first < last:
            _store(each, each_bias, which_group.to(tl.int64), total, total_bias, place, out, inside, PATCH, OUT, BIAS)


@triton.jit
def _store(each, each_bias, which, total, total_bias, place, out, inside,
           PATCH: tl.constexpr, OUT: tl.constexpr, BIAS: tl.constexpr):  # fmt: skip
    """Write one tile of a gradient, and the bias's with the first; returns the squared norm of what was written."""
    held = fit(total, each.dtype.element_ty)
    tl.store(each + which * (PATCH * OUT) + place, held, mask=inside)
    held = held.to(tl.float32)
    square = tl.sum(tl.sum(held * held, 1), 0)  # beyond the edges there are zeros
    if BIAS:
        if tl.program_id(1) == 0:
            tl.store(each_bias + which * OUT + out, total_bias, mask=out < OUT)
            square += tl.sum(total_bias * total_bias, 0)
    return square


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
    SIZE: tl.constexpr = ROWS * COLUMNS * OUT
    PARTS: tl.constexpr = (OUT + TILE_OUT - 1) // TILE_OUT
    client = tl.program_id(0)
    pair = tl.program_id(1) * TILE + tl.arange(0, TILE)
    row, column = pair % AREA // WIDTH + PADDING, pair % WIDTH + PADDING
    channel = tl.program_id(2) * TILE_IN + tl.arange(0, TILE_IN)
    at = ((client * slots * AREA + pair).to(tl.int64) * CHANNELS)[:, None] + channel[None, :]
    inside = (pair < slots * AREA)[:, None] & (channel < CHANNELS)[None, :]
    count = tl.load(counts + client).to(tl.int32)
    within = tl.arange(0, TILE_OUT)
    total = tl.zeros((TILE, TILE_IN), tl.float32)
    if tl.program_id(1) * TILE < count * AREA:
        real = pair < count * AREA
        first = tl.program_id(1) * TILE // AREA
        gradients = dz + (client * slots + first).to(tl.int64) * SIZE
        outputs = ((pair // AREA - first) * SIZE + (row * COLUMNS + column) * OUT)[:, None] + within[None, :]
        weights = weight + client.to(tl.int64) * (SIDE * SIDE * CHANNELS * OUT)
        matrix = (channel * OUT)[None, :] + within[:, None]
        for turn in range(0, SIDE * SIDE * PARTS):
            tap, part = turn // PARTS, turn % PARTS * TILE_OUT
            r, c = row - tap // SIDE, column - tap % SIDE
            there = real & (r >= 0) & (r < ROWS) & (c >= 0) & (c < COLUMNS)
            shift = part - (tap // SIDE * COLUMNS + tap % SIDE) * OUT
            g = tl.load(gradients + shift + outputs, mask=there[:, None] & (part + within < OUT)[None, :], other=0.0)
            w = tl.load(
                weights + (tap * (CHANNELS * OUT) + part) + matrix,
                mask=(part + within < OUT)[:, None] & (channel < CHANNELS)[None, :], other=0.0,
            )  # fmt: skip
            total = tl.dot(g, w, total, input_precision=PRECISION)
    tl.store(dx + at, fit(total, dx.dtype.element_ty), mask=inside)


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

"""Triton kernels: convolutions of K clients at once, with their ReLU and max-pooling.

A convolution is one implicit matrix product: patches are read from the images without being copied out, and of the
pooled values only the offset of the winner is kept, -1 where ReLU cut it off, which is all that the backward pass
needs. Images have their channels last in memory. Slots beyond a client's count, which hold filling, are skipped. The
shapes of all arguments are in the table of fedceo.training.batched.

Images, weights and gradients between kernels are float32 or float16; every sum is float32. A gradient in float16 is
held times a power of two, so that small ones stay in its range, and what is beyond that range is held at its edge.
"""

# ruff: noqa: N803, SIM300
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
def pooled_place(pair, out, POSITIONS: tl.constexpr, OUT: tl.constexpr, PLANAR: tl.constexpr):
    """Where the pooled values of (record, position) pairs lie: with channels last, or in torch's order if PLANAR."""
    if PLANAR:
        return (pair // POSITIONS * (POSITIONS * OUT) + pair % POSITIONS)[:, None] + (out * POSITIONS)[None, :]
    else:
        return (pair * OUT)[:, None] + out[None, :]


@triton.jit
def store_pooled(
    y, winner, best, which, bias, client, pair, out, count, slots,
    POSITIONS: tl.constexpr, OUT: tl.constexpr, RELU: tl.constexpr, BIAS: tl.constexpr, PLANAR: tl.constexpr,
):  # fmt: skip
    """Write the largest of pooled values with bias and ReLU, and which it was: -1 where ReLU cut it off, and filling.

    winner has channels last, y too unless it is PLANAR.
    """
    if BIAS:
        best += tl.load(bias + out, mask=out < OUT, other=0.0)[None, :]
    inside = (pair < slots * POSITIONS)[:, None] & (out < OUT)[None, :]
    cut = (pair >= count * POSITIONS)[:, None] & inside
    if RELU:
        cut = cut | (best <= 0)
    batch = (client * slots).to(tl.int64) * (POSITIONS * OUT)
    to = y + batch + pooled_place(pair, out, POSITIONS, OUT, PLANAR)
    tl.store(to, fit(tl.where(cut, 0.0, best), y.dtype.element_ty), mask=inside)
    to = winner + batch + pooled_place(pair, out, POSITIONS, OUT, False)
    tl.store(to, tl.where(cut, -1, which).to(tl.int8), mask=inside)


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
    RELU: tl.constexpr, BIAS: tl.constexpr, PLANAR: tl.constexpr, PRECISION: tl.constexpr,
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
    pair = tl.program_id(1) * TILE + tl.arange(0, TILE)
    store_pooled(y, winner, best, which, bias + client * bias_row, client, pair, out, count, slots,
                 POSITIONS, OUT, RELU, BIAS, PLANAR)  # fmt: skip


@triton.jit
def unpool_kernel(
    dy, winner, dz, counts, slots,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUT: tl.constexpr, POOL: tl.constexpr, SCALE: tl.constexpr,
    PLANAR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write dz, the gradient before pooling and ReLU: a pooled value's gradient goes to its winner, zeros elsewhere.

    Gradients are multiplied by SCALE on the way.
    """
    SIZE: tl.constexpr = ROWS * COLUMNS * POOL * POOL * OUT
    record = tl.program_id(0).to(tl.int64)
    if record % slots < tl.load(counts + record // slots):
        at = tl.program_id(1) * TILE + tl.arange(0, TILE)
        row, column = at // (OUT * COLUMNS * POOL), at // OUT % (COLUMNS * POOL)
        position, out = row // POOL * COLUMNS + column // POOL, at % OUT
        place = position * OUT + out
        source = out * (ROWS * COLUMNS) + position if PLANAR else place
        g = tl.load(dy + record * (ROWS * COLUMNS * OUT) + source, mask=at < SIZE)
        won = tl.load(winner + record * (ROWS * COLUMNS * OUT) + place, mask=at < SIZE)
        won = won == row % POOL * POOL + column % POOL
        g = tl.where(won, SCALE * g.to(tl.float32), 0.0)
        tl.store(dz + record * SIZE + at, fit(g, dz.dtype.element_ty), mask=at < SIZE)


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

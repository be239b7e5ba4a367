"""Triton kernels for float32 on a GPU: convolutions of K clients at once, small stages fused, the step with its noise.

A convolution runs with its ReLU and max-pooling as one implicit matrix product: patches are read where they lie, and
of the pooled values the place of the winner is kept, -1 where ReLU cut it off. Going back needs no more: the
gradient of a pooled value belongs to its winner. Images lie channels last. Filling beyond a client's count is skipped.

Noise is a function of (key, step, entry): Philox 4x32 with the client's 64-bit key and (block of entries, step) as
counter, turned into Gaussians by Box-Muller. The step that draws it and `fill_noise` agree on every number.
"""

# ruff: noqa: N803
# mypy: ignore-errors

import triton
import triton.language as tl

QUARTER = tl.constexpr(256)
"""Entries of a program that share one lane of Philox's four outputs."""


@triton.jit
def forward(
    x, weight, bias, y, winner, counts, slots,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUT: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, POOL: tl.constexpr,
    RELU: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, TILE_IN: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """One tile of a client's (record, pooled position) pairs; weight is (K, taps, CHANNELS, OUT)."""
    PATCH: tl.constexpr = SIDE * SIDE * CHANNELS
    POSITIONS: tl.constexpr = ROWS * COLUMNS
    client = tl.program_id(0)
    pair = tl.program_id(1) * TILE + tl.arange(0, TILE)
    record = client * slots + pair // POSITIONS
    row, column = pair % POSITIONS // COLUMNS, pair % COLUMNS
    out = tl.program_id(2) * TILE_OUT + tl.arange(0, TILE_OUT)
    inside = (pair < slots * POSITIONS)[:, None] & (out < OUT)[None, :]
    at = ((client * slots * POSITIONS + pair).to(tl.int64) * OUT)[:, None] + out[None, :]
    real = pair < tl.load(counts + client) * POSITIONS
    best = tl.full((TILE, TILE_OUT), float("-inf"), tl.float32)
    which = tl.full((TILE, TILE_OUT), 0, tl.int8)
    if tl.program_id(1) * TILE < tl.load(counts + client) * POSITIONS:
        for offset in tl.static_range(POOL * POOL):
            top = (row * POOL + offset // POOL) * STRIDE - PADDING
            left = (column * POOL + offset % POOL) * STRIDE - PADDING
            corner = (record.to(tl.int64) * HEIGHT + top) * (WIDTH * CHANNELS) + left * CHANNELS
            total = tl.zeros((TILE, TILE_OUT), tl.float32)
            for start in range(0, PATCH, TILE_IN):
                entry = start + tl.arange(0, TILE_IN)
                down, right, channel = entry // (CHANNELS * SIDE), entry // CHANNELS % SIDE, entry % CHANNELS
                there = real[:, None] & (entry < PATCH)[None, :]
                if PADDING > 0:
                    r, c = top[:, None] + down[None, :], left[:, None] + right[None, :]
                    there = there & (r >= 0) & (r < HEIGHT) & (c >= 0) & (c < WIDTH)
                shift = (down * WIDTH + right) * CHANNELS + channel
                patch = tl.load(x + corner[:, None] + shift[None, :], mask=there, other=0.0)
                w = tl.load(
                    weight + (client * PATCH + entry)[:, None] * OUT + out[None, :],
                    mask=(entry < PATCH)[:, None] & (out < OUT)[None, :], other=0.0,
                )  # fmt: skip
                total = tl.dot(patch, w, total, input_precision=PRECISION)
            wins = (total > best) | (total != total)
            best = tl.where(wins, total, best)
            which = tl.where(wins, tl.full((TILE, TILE_OUT), offset, tl.int8), which)
        if BIAS:
            best += tl.load(bias + client * OUT + out, mask=out < OUT, other=0.0)[None, :]
    cut = ~real[:, None] & inside
    if RELU:
        cut = cut | (best <= 0)
    tl.store(y + at, tl.where(cut, 0.0, best), mask=inside)
    tl.store(winner + at, tl.where(cut, tl.full((TILE, TILE_OUT), -1, tl.int8), which), mask=inside)


@triton.jit
def weight_gradients(
    x, dy, winner, each, each_bias, squares, counts, slots, group,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUT: tl.constexpr,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, POOL: tl.constexpr,
    BIAS: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, TILE_IN: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """The gradients of `group` records of a client, summed: (groups, PATCH, OUT), (groups, OUT), and their squares."""
    PATCH: tl.constexpr = SIDE * SIDE * CHANNELS
    POSITIONS: tl.constexpr = ROWS * COLUMNS
    groups = tl.cdiv(slots, group)
    which_group = tl.program_id(0)
    client, first = which_group // groups, which_group % groups * group
    last = tl.minimum(first + group, tl.load(counts + client))
    entry = tl.program_id(1) * TILE_IN + tl.arange(0, TILE_IN)
    out = tl.program_id(2) * TILE_OUT + tl.arange(0, TILE_OUT)
    down, right, channel = entry // (CHANNELS * SIDE), entry // CHANNELS % SIDE, entry % CHANNELS
    shift = (down * WIDTH + right) * CHANNELS + channel
    total = tl.zeros((TILE_IN, TILE_OUT), tl.float32)
    total_bias = tl.zeros((TILE_OUT,), tl.float32)
    for slot in range(first, last):
        record = (client * slots + slot).to(tl.int64)
        for start in range(0, POSITIONS, TILE):
            position = start + tl.arange(0, TILE)
            row, column = position // COLUMNS, position % COLUMNS
            at = (record * POSITIONS * OUT + position * OUT)[:, None] + out[None, :]
            inside = (position < POSITIONS)[:, None] & (out < OUT)[None, :]
            g = tl.load(dy + at, mask=inside, other=0.0)
            won = tl.load(winner + at, mask=inside, other=-1)
            total_bias += tl.sum(tl.where(won >= 0, g, 0.0), 0)
            for offset in tl.static_range(POOL * POOL):
                top = (row * POOL + offset // POOL) * STRIDE - PADDING
                left = (column * POOL + offset % POOL) * STRIDE - PADDING
                corner = (record * HEIGHT + top) * (WIDTH * CHANNELS) + left * CHANNELS
                there = (entry < PATCH)[:, None] & (position < POSITIONS)[None, :]
                if PADDING > 0:
                    r, c = down[:, None] + top[None, :], right[:, None] + left[None, :]
                    there = there & (r >= 0) & (r < HEIGHT) & (c >= 0) & (c < WIDTH)
                patch = tl.load(x + shift[:, None] + corner[None, :], mask=there, other=0.0)
                total = tl.dot(patch, tl.where(won == offset, g, 0.0), total, input_precision=PRECISION)
    inside = (entry < PATCH)[:, None] & (out < OUT)[None, :] & (first < last)
    tl.store(each + (which_group.to(tl.int64) * PATCH + entry)[:, None] * OUT + out[None, :], total, mask=inside)
    square = tl.sum(tl.sum(total * total, 1), 0)  # beyond the edges there are zeros
    if BIAS and tl.program_id(1) == 0:
        tl.store(each_bias + which_group * OUT + out, total_bias, mask=out < OUT)
        square += tl.sum(total_bias * total_bias, 0)
    part = tl.program_id(1) * tl.num_programs(2) + tl.program_id(2)
    tl.store(squares + which_group * (tl.num_programs(1) * tl.num_programs(2)) + part, square)


@triton.jit
def input_gradients(
    dy, winner, weight, dx, counts, slots,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUT: tl.constexpr,
    SIDE: tl.constexpr, PADDING: tl.constexpr, POOL: tl.constexpr, PRECISION: tl.constexpr,
    TILE: tl.constexpr, TILE_IN: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """One tile of a client's (record, input position) pairs, for stride 1: a place gathers what it had a part in."""
    AREA: tl.constexpr = HEIGHT * WIDTH
    PARTS: tl.constexpr = (OUT + TILE_OUT - 1) // TILE_OUT
    client = tl.program_id(0)
    pair = tl.program_id(1) * TILE + tl.arange(0, TILE)
    record = client * slots + pair // AREA
    row, column = pair % AREA // WIDTH, pair % WIDTH
    channel = tl.program_id(2) * TILE_IN + tl.arange(0, TILE_IN)
    at = ((client * slots * AREA + pair).to(tl.int64) * CHANNELS)[:, None] + channel[None, :]
    inside = (pair < slots * AREA)[:, None] & (channel < CHANNELS)[None, :]
    count = tl.load(counts + client)
    total = tl.zeros((TILE, TILE_IN), tl.float32)
    if tl.program_id(1) * TILE < count * AREA:
        real = pair < count * AREA
        for turn in range(0, SIDE * SIDE * PARTS):
            tap, out = turn // PARTS, turn % PARTS * TILE_OUT + tl.arange(0, TILE_OUT)
            r, c = row + PADDING - tap // SIDE, column + PADDING - tap % SIDE
            there = real & (r >= 0) & (r < ROWS * POOL) & (c >= 0) & (c < COLUMNS * POOL)
            where = ((record.to(tl.int64) * ROWS + r // POOL) * COLUMNS + c // POOL) * OUT
            use = there[:, None] & (out < OUT)[None, :]
            won = tl.load(winner + where[:, None] + out[None, :], mask=use, other=-1)
            g = tl.load(dy + where[:, None] + out[None, :], mask=use, other=0.0)
            g = tl.where(won == (r % POOL * POOL + c % POOL)[:, None], g, 0.0)
            w = tl.load(
                weight + ((client * SIDE * SIDE + tap) * CHANNELS + channel)[None, :] * OUT + out[:, None],
                mask=(out < OUT)[:, None] & (channel < CHANNELS)[None, :], other=0.0,
            )  # fmt: skip
            total = tl.dot(g, w, total, input_precision=PRECISION)
    tl.store(dx + at, total, mask=inside)


@triton.jit
def weighted_sum(each, factors, out, counts, slots, group, out_client,
                 CHANNELS: tl.constexpr, OUT: tl.constexpr, TAPS: tl.constexpr, WEIGHTED: tl.constexpr,
                 TILE: tl.constexpr, AT_ONCE: tl.constexpr):  # fmt: skip
    """out[k] = sum over groups of factor * each, from (TAPS, CHANNELS, OUT) into torch's (OUT, CHANNELS, TAPS)."""
    SIZE: tl.constexpr = TAPS * CHANNELS * OUT
    client = tl.program_id(0)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    groups = tl.cdiv(slots, group)
    filled = tl.cdiv(tl.load(counts + client), group)
    total = tl.zeros((TILE,), tl.float32)
    for start in range(0, filled, AT_ONCE):
        which = start + tl.arange(0, AT_ONCE)
        at = (client * groups + which).to(tl.int64)[:, None] * SIZE + place[None, :]
        gradient = tl.load(each + at, mask=(which < filled)[:, None] & (place < SIZE)[None, :], other=0.0)
        if WEIGHTED:
            factor = tl.load(factors + client * slots + which, mask=which < filled, other=0.0)[:, None]
            gradient = tl.where(factor > 0, factor * gradient, 0.0)  # it may be NaN, and 0 * NaN is no zero
        total += tl.sum(gradient, 0)
    entry = place // OUT
    to = (place % OUT * CHANNELS + entry % CHANNELS) * TAPS + entry // CHANNELS
    tl.store(out + client.to(tl.int64) * out_client + to, total, mask=place < SIZE)


@triton.jit
def normals(key, step, block):
    """Four vectors of independent standard normals for a vector of blocks."""
    zero = block * 0
    a, b, c, d = tl.philox(key, block, zero + step, zero, zero)
    scale: tl.constexpr = 2.3283064365386963e-10  # 2^-32; half a unit more keeps the logarithm finite
    turn: tl.constexpr = 6.283185307179586
    one = tl.sqrt(-2.0 * tl.log((a.to(tl.float32) + 0.5) * scale))
    two = tl.sqrt(-2.0 * tl.log((c.to(tl.float32) + 0.5) * scale))
    first, second = b.to(tl.float32) * scale * turn, d.to(tl.float32) * scale * turn
    return one * tl.cos(first), one * tl.sin(first), two * tl.cos(second), two * tl.sin(second)


@triton.jit
def fill_noise(out, keys, step, size):
    """out[k, i] = the standard normal of (keys[k], step, i)."""
    client = tl.program_id(0)
    block = tl.program_id(1) * QUARTER + tl.arange(0, QUARTER)
    a, b, c, d = normals(tl.load(keys + client), tl.load(step).to(tl.int32), block)
    first = tl.program_id(1) * (4 * QUARTER) + tl.arange(0, QUARTER)
    row = out + client.to(tl.int64) * size
    tl.store(row + first, a, mask=first < size)
    tl.store(row + first + QUARTER, b, mask=first + QUARTER < size)
    tl.store(row + first + 2 * QUARTER, c, mask=first + 2 * QUARTER < size)
    tl.store(row + first + 3 * QUARTER, d, mask=first + 3 * QUARTER < size)


@triton.jit
def _move(weights, momenta, starts, gradients, at, inside, noise, rate, divisor, std, momentum, proximal,
          NOISY: tl.constexpr, MOMENTUM: tl.constexpr, PROXIMAL: tl.constexpr):  # fmt: skip
    w = tl.load(weights + at, mask=inside)
    g = tl.load(gradients + at, mask=inside)
    if NOISY:
        g = (g + std * noise) / divisor
    if PROXIMAL:
        g += proximal * (w - tl.load(starts + at, mask=inside))
    if MOMENTUM:
        g += momentum * tl.load(momenta + at, mask=inside)
        tl.store(momenta + at, g, mask=inside)
    tl.store(weights + at, w - rate * g, mask=inside)


@triton.jit
def take_step(weights, momenta, starts, gradients, keys, step, steps, rate, divisors, size, std, momentum, proximal,
              NOISY: tl.constexpr, MOMENTUM: tl.constexpr, PROXIMAL: tl.constexpr):  # fmt: skip
    """w -= rate * (momentum * m + (gradient + std * noise) / divisor + proximal * (w - start)), until steps[k]."""
    client = tl.program_id(0)
    now = tl.load(step)
    if now < tl.load(steps + client):
        first = tl.program_id(1) * (4 * QUARTER) + tl.arange(0, QUARTER)
        a = tl.zeros((QUARTER,), tl.float32)
        b, c, d = a, a, a
        if NOISY:
            block = tl.program_id(1) * QUARTER + tl.arange(0, QUARTER)
            a, b, c, d = normals(tl.load(keys + client), now.to(tl.int32), block)
        eta, divisor = tl.load(rate), tl.load(divisors + client)
        row = client.to(tl.int64) * size
        for quarter in tl.static_range(4):
            noise = a if quarter == 0 else (b if quarter == 1 else (c if quarter == 2 else d))
            i = first + quarter * QUARTER
            _move(weights, momenta, starts, gradients, row + i, i < size, noise, eta, divisor, std, momentum, proximal,
                  NOISY, MOMENTUM, PROXIMAL)  # fmt: skip

"""Triton kernels in float32 that go through a batch record by record, between the matrix products.

A row is one slot of one client's batch, of K * B in all; `slots` is B. Pointers whose flag (BIAS, MASK) is off are not
read.
"""

# ruff: noqa: N803
# mypy: ignore-errors

import triton
import triton.language as tl

from fedceo.training.cuda.draw_kernels import dropout


@triton.jit
def gather_kernel(
    inputs, labels, batches, counts, keys, step, x, y, count, mask, slots, size, units,
    COPY: tl.constexpr, MASK: tl.constexpr, KEEP: tl.constexpr, TILE: tl.constexpr, TILE_MASK: tl.constexpr,
):  # fmt: skip
    """The step's part of batches, (S, K, B), and counts, (S, K), with inputs and labels; masks by their keys.

    With COPY x becomes the records, (K, B, size), otherwise their rows among the inputs, (K, B).
    """
    row, rows = tl.program_id(0), tl.num_programs(0)
    at = tl.load(step) * rows + row
    record = tl.load(batches + at)
    tl.store(y + row, tl.load(labels + record))
    if row % slots == 0:
        tl.store(count + row // slots, tl.load(counts + at // slots))
    if COPY:
        for start in range(0, size, TILE):
            unit = start + tl.arange(0, TILE)
            value = tl.load(inputs + record * size + unit, mask=unit < size)
            tl.store(x + row.to(tl.int64) * size + unit, value, mask=unit < size)
    else:
        tl.store(x + row, record)
    if MASK:
        key, now = tl.load(keys + row // slots), tl.load(step).to(tl.int32)
        for start in range(0, units, TILE_MASK):
            unit = start + tl.arange(0, TILE_MASK)
            value = dropout(key, now, row % slots * units + unit, KEEP)
            tl.store(mask + row.to(tl.int64) * units + unit, value, mask=unit < units)


@triton.jit
def activate_kernel(
    y, bias, mask, slots, size, bias_row,
    BIAS: tl.constexpr, MASK: tl.constexpr, RELU: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """y = relu((y + bias) * mask), in place; y and mask are (K, B, size), a client's bias begins at k * bias_row."""
    row = tl.program_id(0)
    unit = tl.program_id(1) * TILE + tl.arange(0, TILE)
    at = row.to(tl.int64) * size + unit
    value = tl.load(y + at, mask=unit < size)
    if BIAS:
        value += tl.load(bias + row // slots * bias_row + unit, mask=unit < size)
    if MASK:
        value *= tl.load(mask + at, mask=unit < size)
    if RELU:
        value = tl.where(value <= 0, 0.0, value)  # NaN stays
    tl.store(y + at, value, mask=unit < size)


@triton.jit
def linear_backward_kernel(
    dy, y, mask, x, rows, squares, size, inputs,
    IN_PLACE: tl.constexpr, MASK: tl.constexpr, RELU: tl.constexpr, BIAS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """dy, (K, B, size), becomes g, the gradient before ReLU and mask.

    squares, (K, B), becomes the squared norm of each record's gradient: |g|^2 |x|^2, with |x|^2 + 1 if there is a bias.
    IN_PLACE: x is |x|^2 of all records, and rows, (K, B), says which they are.
    """
    row = tl.program_id(0).to(tl.int64)
    of_g = 0.0
    for start in range(0, size, TILE):
        unit = start + tl.arange(0, TILE)
        at = row * size + unit
        g = tl.load(dy + at, mask=unit < size, other=0.0)
        if RELU:
            g = tl.where(tl.load(y + at, mask=unit < size, other=0.0) <= 0, 0.0, g)
        if MASK:
            g *= tl.load(mask + at, mask=unit < size, other=0.0)
        if RELU or MASK:
            tl.store(dy + at, g, mask=unit < size)
        of_g += tl.sum(g * g, 0)
    of_x = 1.0 if BIAS else 0.0
    if IN_PLACE:
        of_x += tl.load(x + tl.load(rows + row))
    else:
        for start in range(0, inputs, TILE):
            unit = start + tl.arange(0, TILE)
            value = tl.load(x + row * inputs + unit, mask=unit < inputs, other=0.0)
            of_x += tl.sum(value * value, 0)
    tl.store(squares + row, of_g * of_x)


@triton.jit
def scale_rows_kernel(
    g, x, factors, bias, slots, size, inputs, bias_client,
    BIAS: tl.constexpr, TILE: tl.constexpr, TILE_IN: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """g *= factor, row by row, for TILE units of one client; their sums over its rows become the bias's gradient.

    A factor of 0 writes zeros into g and into TILE_IN units of x: both may hold NaN, and 0 * NaN is NaN.
    """
    client = tl.program_id(0)
    unit = tl.program_id(1) * TILE + tl.arange(0, TILE)
    entry = tl.program_id(1) * TILE_IN + tl.arange(0, TILE_IN)
    nothing = tl.zeros((AT_ONCE, TILE_IN), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    for start in range(0, slots, AT_ONCE):
        slot = start + tl.arange(0, AT_ONCE)
        row = (client * slots + slot).to(tl.int64)
        factor = tl.load(factors + row, mask=slot < slots, other=1.0)[:, None]
        inside = (slot < slots)[:, None] & (unit < size)[None, :]
        at = row[:, None] * size + unit[None, :]
        value = tl.where(factor > 0, factor * tl.load(g + at, mask=inside, other=0.0), 0.0)
        tl.store(g + at, value, mask=inside)
        total += tl.sum(value, 0)
        tl.store(x + row[:, None] * inputs + entry[None, :], nothing, mask=(factor == 0) & (entry < inputs)[None, :])
    if BIAS:
        tl.store(bias + client.to(tl.int64) * bias_client + unit, total, mask=unit < size)


@triton.jit
def cross_entropy_kernel(
    logits, labels, counts, losses, dy, slots, classes, MEAN: tl.constexpr, TILE: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The mean loss of a client's records, and the gradient of each one's loss, where MEAN over their number too."""
    client = tl.program_id(0)
    count = tl.load(counts + client)
    fraction = 1.0 / tl.maximum(count, 1)
    unit = tl.arange(0, TILE)
    total = tl.zeros((AT_ONCE,), tl.float32)
    for start in range(0, slots, AT_ONCE):
        slot = start + tl.arange(0, AT_ONCE)
        row = (client * slots + slot).to(tl.int64)
        inside = (slot < slots)[:, None] & (unit < classes)[None, :]
        at = row[:, None] * classes + unit[None, :]
        value = tl.load(logits + at, mask=inside, other=float("-inf"))
        value = tl.where((slot < slots)[:, None], value, 0.0)
        is_label = unit[None, :] == tl.load(labels + row, mask=slot < slots, other=0)[:, None]
        value -= tl.max(value, 1)[:, None]
        powers = tl.exp(value)
        whole = tl.sum(powers, 1)
        loss = tl.log(whole) - tl.sum(tl.where(is_label, value, 0.0), 1)
        g = powers / whole[:, None] - tl.where(is_label, 1.0, 0.0)
        if MEAN:
            g = tl.where((slot < count)[:, None], g * fraction, 0.0)
        total += tl.where(slot < count, loss * fraction, 0.0)
        tl.store(dy + at, g, mask=inside)
    tl.store(losses + client, tl.sum(total, 0))


@triton.jit
def clip_factors_kernel(
    squares, counts, clips, factors, records, slots,
    PARTS: tl.constexpr, MARGIN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """min(1, clip / (MARGIN * norm)) of each record, whose squared norm is a sum of PARTS.

    It is 0 for filling, and for norms that are NaN or infinite.
    """
    record = tl.program_id(0) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE,), tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(squares + part * records + record, mask=record < records, other=0.0)
    norm = MARGIN * tl.sqrt(total)
    real = record % slots < tl.load(counts + record // slots, mask=record < records, other=0)
    use = real & (norm < float("inf"))  # NaN is not less either
    clip = tl.load(clips + record // slots, mask=record < records, other=0.0)
    factor = tl.minimum(clip / (norm + 1e-6), 1.0)
    tl.store(factors + record, tl.where(use, factor, 0.0), mask=record < records)

"""Triton kernels: products of linear layers for K clients at once, of float16 or TF32 with float32 sums."""

# ruff: noqa: N803, SIM102
# mypy: ignore-errors

import triton
import triton.language as tl

from fedceo.training.cuda.convolution_kernels import fit


@triton.jit
def first_entries(rows, batch, slot, count, INPUTS: tl.constexpr, IN_PLACE: tl.constexpr):
    """Where the input of each slot of a client begins, whose slots begin at `batch`; IN_PLACE: at the rows named."""
    row = batch + slot
    if IN_PLACE:
        row = tl.load(rows + row, mask=slot < count, other=0)
    return row * INPUTS


@triton.jit
def linear_input_gradients_kernel(
    g, weight, dx, counts, slots, weight_client,
    INPUTS: tl.constexpr, OUT: tl.constexpr, HELD: tl.constexpr,
    TILE: tl.constexpr, TILE_IN: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """dx[k] = g[k] weight[k] of one tile of (slots, inputs); filling gets zeros. Products are times HELD."""
    client = tl.program_id(0)
    entry = tl.program_id(1) * TILE_IN + tl.arange(0, TILE_IN)
    slot = tl.program_id(2) * TILE + tl.arange(0, TILE)
    count = tl.load(counts + client).to(tl.int32)
    within = tl.arange(0, TILE_OUT)
    weights = weight + client.to(tl.int64) * weight_client
    batch = (client * slots).to(tl.int64)
    total = tl.zeros((TILE, TILE_IN), tl.float32)
    if tl.program_id(2) * TILE < count:
        for begin in range(0, OUT, TILE_OUT):
            out = begin + within
            dy = tl.load(
                g + batch * OUT + (slot * OUT)[:, None] + out[None, :],
                mask=(slot < count)[:, None] & (out < OUT)[None, :], other=0.0,
            )  # fmt: skip
            w = tl.load(
                weights + (out * INPUTS)[:, None] + entry[None, :],
                mask=(out < OUT)[:, None] & (entry < INPUTS)[None, :], other=0.0,
            )  # fmt: skip
            total = tl.dot(fit(HELD * dy, tl.float16), fit(w, tl.float16), total)
    to = dx + batch * INPUTS + (slot * INPUTS)[:, None] + entry[None, :]
    tl.store(to, total / HELD, mask=(slot < slots)[:, None] & (entry < INPUTS)[None, :])


@triton.jit
def linear_forward_kernel(
    x, rows, weight, bias, mask, y, counts, slots, weight_client, bias_client,
    INPUTS: tl.constexpr, OUT: tl.constexpr, IN_PLACE: tl.constexpr,
    BIAS: tl.constexpr, MASK: tl.constexpr, RELU: tl.constexpr,
    TILE: tl.constexpr, TILE_IN: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """y[k] = relu((x[k] weight[k]^T + bias[k]) * mask[k]) of one tile of (slots, outputs); of filling, without x."""
    client = tl.program_id(0)
    out = tl.program_id(1) * TILE_OUT + tl.arange(0, TILE_OUT)
    slot = tl.program_id(2) * TILE + tl.arange(0, TILE)
    count = tl.load(counts + client).to(tl.int32)
    within = tl.arange(0, TILE_IN)
    weights = weight + client.to(tl.int64) * weight_client
    batch = (client * slots).to(tl.int64)
    total = tl.zeros((TILE, TILE_OUT), tl.float32)
    if tl.program_id(2) * TILE < count:
        first = first_entries(rows, batch, slot, count, INPUTS, IN_PLACE)
        for begin in range(0, INPUTS, TILE_IN):
            entry = begin + within
            inputs = tl.load(
                x + first[:, None] + entry[None, :],
                mask=(slot < count)[:, None] & (entry < INPUTS)[None, :], other=0.0,
            )  # fmt: skip
            w = tl.load(
                weights + (out * INPUTS)[None, :] + entry[:, None],
                mask=(out < OUT)[None, :] & (entry < INPUTS)[:, None], other=0.0,
            )  # fmt: skip
            total = tl.dot(fit(inputs, tl.float16), fit(w, tl.float16), total)
    inside = (slot < slots)[:, None] & (out < OUT)[None, :]
    at = (slot * OUT)[:, None] + out[None, :]
    if BIAS:
        total += tl.load(bias + client.to(tl.int64) * bias_client + out, mask=out < OUT, other=0.0)[None, :]
    if MASK:
        total *= tl.load(mask + batch * OUT + at, mask=inside, other=0.0)
    if RELU:
        total = tl.where(total <= 0, 0.0, total)  # NaN stays
    tl.store(y + batch * OUT + at, total, mask=inside)


@triton.jit
def linear_gradients_kernel(
    g, x, rows, factors, weight, bias, counts, slots, weight_client, bias_client,
    INPUTS: tl.constexpr, OUT: tl.constexpr, IN_PLACE: tl.constexpr, FACTORS: tl.constexpr, BIAS: tl.constexpr,
    TILE: tl.constexpr, TILE_IN: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """weight[k] becomes the sum over records of factor * g x^T, and bias[k] that of factor * g, in tiles.

    Without FACTORS each is 1.
    TF32 has the range of float32, so that no small gradient becomes longer than its norm says. Records whose factor is
    0 are dropped: they may hold NaN.
    """
    client = tl.program_id(0)
    entry = tl.program_id(1) * TILE_IN + tl.arange(0, TILE_IN)
    out = tl.program_id(2) * TILE_OUT + tl.arange(0, TILE_OUT)
    count = tl.load(counts + client).to(tl.int32)
    batch = (client * slots).to(tl.int64)
    total = tl.zeros((TILE_OUT, TILE_IN), tl.float32)
    total_bias = tl.zeros((TILE_OUT,), tl.float32)
    for begin in range(0, count, TILE):
        slot = begin + tl.arange(0, TILE)
        factor = tl.where(slot < count, 1.0, 0.0)
        if FACTORS:
            factor = tl.load(factors + batch + slot, mask=slot < count, other=0.0)
        row = first_entries(rows, batch, slot, count, INPUTS, IN_PLACE)
        dy = tl.load(
            g + batch * OUT + (slot * OUT)[None, :] + out[:, None],
            mask=(factor > 0)[None, :] & (out < OUT)[:, None], other=0.0,
        )  # fmt: skip
        inputs = tl.load(
            x + row[:, None] + entry[None, :],
            mask=(factor > 0)[:, None] & (entry < INPUTS)[None, :], other=0.0,
        )  # fmt: skip
        dy *= factor[None, :]
        total = tl.dot(dy, inputs, total, input_precision="tf32")
        total_bias += tl.sum(dy, 1)
    to = (out * INPUTS)[:, None] + entry[None, :]
    inside = (out < OUT)[:, None] & (entry < INPUTS)[None, :]
    tl.store(weight + client.to(tl.int64) * weight_client + to, total, mask=inside)
    if BIAS:
        if tl.program_id(1) == 0:
            tl.store(bias + client.to(tl.int64) * bias_client + out, total_bias, mask=out < OUT)

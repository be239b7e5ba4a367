"""Triton kernels: a step of SGD with its noise, for a range of a client's row or for a linear layer.

Noise is a function of (key, step, entry): Philox 4x32 with the client's 64-bit key and (entry // 4, step) as counter,
turned into four Gaussians by Box-Muller. Every kernel that draws it agrees with `fill_noise_kernel` on every number.
"""

# ruff: noqa: N803, SIM102
# mypy: ignore-errors

import triton
import triton.language as tl

from fedceo.training.cuda.convolution_kernels import fit
from fedceo.training.cuda.product_kernels import first_entries

ENTRIES = tl.constexpr(1024)
"""Entries of a row that one program takes."""


@triton.jit
def normals(key, step, block):
    """Standard normals of four entries to each of (..., n) blocks: (..., n, 2, 2)."""
    zero = block * 0
    a, b, c, d = tl.philox(key, block, zero + step, zero, zero)
    scale: tl.constexpr = 2.3283064365386963e-10  # 2^-32; half a unit more keeps the logarithm finite
    turn: tl.constexpr = 6.283185307179586
    one = tl.sqrt(-2.0 * tl.log((a.to(tl.float32) + 0.5) * scale))
    two = tl.sqrt(-2.0 * tl.log((c.to(tl.float32) + 0.5) * scale))
    first, second = b.to(tl.float32) * scale * turn, d.to(tl.float32) * scale * turn
    evens = tl.join(one * tl.cos(first), two * tl.cos(second))
    return tl.join(evens, tl.join(one * tl.sin(first), two * tl.sin(second)))


@triton.jit
def fill_noise_kernel(out, keys, step, size):
    """out[k, i] = the standard normal of (keys[k], step, i)."""
    client = tl.program_id(0)
    block = tl.program_id(1) * (ENTRIES // 4) + tl.arange(0, ENTRIES // 4)
    drawn = normals(tl.load(keys + client), tl.load(step).to(tl.int32), block)
    at = tl.program_id(1) * ENTRIES + tl.arange(0, ENTRIES)
    tl.store(out + client.to(tl.int64) * size + at, tl.reshape(drawn, (ENTRIES,)), mask=at < size)


@triton.jit
def _move(weights, momenta, starts, at, inside, g, noise, rate, divisor, std, momentum, proximal,
          NOISY: tl.constexpr, MOMENTUM: tl.constexpr, PROXIMAL: tl.constexpr):  # fmt: skip
    """Move the entries `at` by their gradient g; without NOISY, MOMENTUM or PROXIMAL what belongs to it is not read."""
    w, pulled = _pull(weights, momenta, starts, at, inside, momentum, proximal, MOMENTUM, PROXIMAL)
    if NOISY:
        g = (g + std * noise) / divisor
    g += pulled
    if MOMENTUM:
        tl.store(momenta + at, g, mask=inside)
    tl.store(weights + at, w - rate * g, mask=inside)


@triton.jit
def _pull(weights, momenta, starts, at, inside, momentum, proximal, MOMENTUM: tl.constexpr, PROXIMAL: tl.constexpr):
    """The weights `at`, and what is added to their gradient: momentum and the pull back to the start."""
    w = tl.load(weights + at, mask=inside)
    pulled = tl.zeros_like(w)
    if PROXIMAL:
        pulled += proximal * (w - tl.load(starts + at, mask=inside))
    if MOMENTUM:
        pulled += momentum * tl.load(momenta + at, mask=inside)
    return w, pulled


@triton.jit
def take_step_kernel(
    weights, momenta, starts, gradients, keys, step, steps, rates, stds, divisors, row, first, last, momentum, proximal,
    NOISY: tl.constexpr, MOMENTUM: tl.constexpr, PROXIMAL: tl.constexpr,
):  # fmt: skip
    """w -= rate * (momentum * m + (gradient + std * noise) / divisor + proximal * (w - start)), until steps[k].

    For the entries from `first`, a multiple of 4, up to `last` of every client's row.
    """
    client = tl.program_id(0)
    now = tl.load(step)
    if now < tl.load(steps + client):
        at = first + tl.program_id(1) * ENTRIES + tl.arange(0, ENTRIES)
        inside = at < last
        rate, std, divisor, noise = tl.load(rates + client), 0.0, 1.0, 0.0
        if NOISY:
            block = first // 4 + tl.program_id(1) * (ENTRIES // 4) + tl.arange(0, ENTRIES // 4)
            noise = tl.reshape(normals(tl.load(keys + client), now.to(tl.int32), block), (ENTRIES,))
            std, divisor = tl.load(stds + client), tl.load(divisors + client)
        start = client.to(tl.int64) * row
        g = tl.load(gradients + start + at, mask=inside)
        _move(weights + start, momenta + start, starts + start, at, inside, g, noise, rate, divisor, std,
              momentum, proximal, NOISY, MOMENTUM, PROXIMAL)  # fmt: skip


@triton.jit
def linear_step_kernel(
    g, x, rows, counts, slots, weights, momenta, starts, step, steps, rates, row, first, first_bias, momentum, proximal,
    INPUTS: tl.constexpr, OUT: tl.constexpr, IN_PLACE: tl.constexpr, BIAS: tl.constexpr,
    MOMENTUM: tl.constexpr, PROXIMAL: tl.constexpr, HALF: tl.constexpr, HELD: tl.constexpr,
    TILE: tl.constexpr, TILE_IN: tl.constexpr, TILE_OUT: tl.constexpr,
):  # fmt: skip
    """The same step without noise for a linear layer whose gradient, the sum of g x^T over records, is never written.

    The (OUT, INPUTS) weights begin at the entry `first` of a row, the bias at `first_bias`. HALF multiplies in float16,
    gradients held times HELD. Weights are asked for before the product, so that they come while it is computed.
    """
    client = tl.program_id(0)
    if tl.load(step) < tl.load(steps + client):
        out = tl.program_id(1) * TILE_OUT + tl.arange(0, TILE_OUT)
        entry = tl.program_id(2) * TILE_IN + tl.arange(0, TILE_IN)
        count = tl.load(counts + client).to(tl.int32)
        total = tl.zeros((TILE_OUT, TILE_IN), tl.float32)
        total_bias = tl.zeros((TILE_OUT,), tl.float32)
        batch = (client * slots).to(tl.int64)
        rate, start = tl.load(rates + client), client.to(tl.int64) * row
        at = first + (out * INPUTS)[:, None] + entry[None, :]
        inside = (out < OUT)[:, None] & (entry < INPUTS)[None, :]
        w, pulled = _pull(weights + start, momenta + start, starts + start, at, inside, momentum, proximal,
                          MOMENTUM, PROXIMAL)  # fmt: skip
        for begin in range(0, count, TILE):
            record = begin + tl.arange(0, TILE)
            dy = tl.load(
                g + batch * OUT + (record * OUT)[None, :] + out[:, None],
                mask=(record < count)[None, :] & (out < OUT)[:, None], other=0.0,
            )  # fmt: skip
            inputs = tl.load(
                x + first_entries(rows, batch, record, count, INPUTS, IN_PLACE)[:, None] + entry[None, :],
                mask=(record < count)[:, None] & (entry < INPUTS)[None, :], other=0.0,
            )  # fmt: skip
            if BIAS:
                total_bias += tl.sum(dy, 1)
            if HALF:
                total = tl.dot(fit(HELD * dy, tl.float16), fit(inputs, tl.float16), total)
            else:
                total = tl.dot(dy, inputs, total, input_precision="tf32x3")
        moved = total / HELD + pulled
        if MOMENTUM:
            tl.store(momenta + start + at, moved, mask=inside)
        tl.store(weights + start + at, w - rate * moved, mask=inside)
        if BIAS:
            if tl.program_id(2) == 0:
                _move(weights + start, momenta + start, starts + start, first_bias + out, out < OUT, total_bias,
                      0.0, rate, 1.0, 0.0, momentum, proximal, False, MOMENTUM, PROXIMAL)  # fmt: skip

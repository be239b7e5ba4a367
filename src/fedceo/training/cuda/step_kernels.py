"""Triton kernels in float32: a step of SGD with its noise.

Noise is a function of (key, step, entry): Philox 4x32 with the client's 64-bit key and (block of entries, step) as
counter, turned into Gaussians by Box-Muller. The step that draws it and `fill_noise_kernel` agree on every number.
"""

# ruff: noqa: N803
# mypy: ignore-errors

import triton
import triton.language as tl

QUARTER = tl.constexpr(256)
"""Entries of a program that take the same one of Philox's four outputs."""


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
def fill_noise_kernel(out, keys, step, size):
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
    """Move the entries `at` of a client's row; without NOISY, MOMENTUM or PROXIMAL what belongs to it is not read."""
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
def take_step_kernel(
    weights, momenta, starts, gradients, keys, step, steps, rates, stds, divisors, size, momentum, proximal,
    NOISY: tl.constexpr, MOMENTUM: tl.constexpr, PROXIMAL: tl.constexpr,
):  # fmt: skip
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
        rate, std, divisor = tl.load(rates + client), tl.load(stds + client), tl.load(divisors + client)
        row = client.to(tl.int64) * size
        for quarter in tl.static_range(4):
            noise = a if quarter == 0 else (b if quarter == 1 else (c if quarter == 2 else d))
            i = first + quarter * QUARTER
            _move(weights, momenta, starts, gradients, row + i, i < size, noise, rate, divisor, std, momentum, proximal,
                  NOISY, MOMENTUM, PROXIMAL)  # fmt: skip

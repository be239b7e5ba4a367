"""Triton kernels: random numbers and dropout masks, each a function of (a client's key, its place in the stream)."""

# ruff: noqa: N803
# mypy: ignore-errors

import triton
import triton.language as tl

NUMBERS = tl.constexpr(1024)
"""Numbers that one program draws."""


@triton.jit
def fill_numbers_kernel(out, keys, firsts, counts):
    """Numbers of 63 bits: counts[k] of client k's stream from out[firsts[k]] on, two to a draw of Philox."""
    client = tl.program_id(0)
    count = tl.load(counts + client)
    if tl.program_id(1) * NUMBERS < count:
        block = tl.program_id(1) * (NUMBERS // 2) + tl.arange(0, NUMBERS // 2)
        zero = block * 0
        a, b, c, d = tl.philox(tl.load(keys + client), block, zero, zero, zero)
        numbers = tl.join(_joined(a, b), _joined(c, d))
        at = tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
        tl.store(out + tl.load(firsts + client) + at, tl.reshape(numbers, (NUMBERS,)), mask=at < count)


@triton.jit
def _joined(high, low):
    """The 63 upper bits of two words of 32."""
    return ((high.to(tl.uint64) << 31) | (low.to(tl.uint64) >> 1)).to(tl.int64)


@triton.jit
def dropout(key, step, entry, KEEP: tl.constexpr):
    """The mask of entries of a step's batch, counted slot by slot: 1 / KEEP with probability KEEP, else 0."""
    most: tl.constexpr = 16777216.0  # 2^24, whose multiples are whole numbers of float32
    zero = entry * 0
    a, _, _, _ = tl.philox(key, entry, zero + step, zero, zero)
    return tl.where((a >> 8).to(tl.float32) < KEEP * most, 1.0 / KEEP, 0.0)


@triton.jit
def fill_masks_kernel(out, key, size, KEEP: tl.constexpr):
    """out[step, entry] = the mask of (key, step, entry), for `size` entries in every step."""
    step = tl.program_id(0)
    entry = tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    mask = dropout(tl.load(key), step, entry, KEEP)
    tl.store(out + step.to(tl.int64) * size + entry, mask, mask=entry < size)

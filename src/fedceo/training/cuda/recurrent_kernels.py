"""Triton kernels of an LSTM's cell: all that happens to one token between two products, for K clients at once.

Memory is that of batched/recurrent.py: L tokens, B slots, U units, a record's tokens B slots apart. A program takes
TILE of a client's B * U entries.
"""

# ruff: noqa: N803
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    """By the exponential of -2|x|, which never overflows."""
    e = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0, -size, size)


@triton.jit
def _four(place, inside, UNITS: tl.constexpr):
    """The values of the four gates, which lie UNITS apart: enter, forget, change, leave."""
    enter, forget = tl.load(place, mask=inside), tl.load(place + UNITS, mask=inside)
    return enter, forget, tl.load(place + 2 * UNITS, mask=inside), tl.load(place + 3 * UNITS, mask=inside)


@triton.jit
def cell_kernel(
    gates, product, cells, bounded, states, token, length, slots,
    UNITS: tl.constexpr, FIRST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """gates, (K, L, B, 4U), of the token: with the product of the state before, then after sigmoid and tanh.

    Writes the cell, its tanh and the state after the token. FIRST: there is no product, (K, B, 4U), and no cell before.
    """
    client, entry = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE + tl.arange(0, TILE)
    size, slot, unit = slots * UNITS, entry // UNITS, entry % UNITS
    inside, four = entry < size, slot * (4 * UNITS) + unit
    gate = gates + (client * length + token) * (4 * size) + four
    enter, forget, change, leave = _four(gate, inside, UNITS)
    cell = cells + (client * (length + 1) + token) * size + entry
    held = tl.zeros((TILE,), tl.float32)
    if not FIRST:
        more_enter, more_forget, more_change, more_leave = _four(product + client * (4 * size) + four, inside, UNITS)
        enter, forget = enter + more_enter, forget + more_forget
        change, leave = change + more_change, leave + more_leave
        held = tl.load(cell, mask=inside)
    enter, forget, leave = tl.sigmoid(enter), tl.sigmoid(forget), tl.sigmoid(leave)
    change = _tanh(change)
    held = forget * held + enter * change
    shown = _tanh(held)
    tl.store(gate, enter, mask=inside)
    tl.store(gate + UNITS, forget, mask=inside)
    tl.store(gate + 2 * UNITS, change, mask=inside)
    tl.store(gate + 3 * UNITS, leave, mask=inside)
    tl.store(cell + size, held, mask=inside)
    tl.store(bounded + (client * length + token) * size + entry, shown, mask=inside)
    tl.store(states + (client * (length + 1) + token + 1) * size + entry, leave * shown, mask=inside)


@triton.jit
def cell_backward_kernel(
    gates, cells, bounded, product, dy, last, dcell, g, token, length, slots, dy_client, dy_slot, dy_token,
    UNITS: tl.constexpr, FIRST: tl.constexpr, AT_LAST: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """g, (K, L, B, 4U), of the token: gradients before sigmoid and tanh; dcell, (K, B, U), of the cell before it.

    The state's gradient is the product, (K, B, U), of g of the token after with the recurrent weights, and dy's. FIRST,
    at the last token, there is no product and no dcell yet. dy is (K, B, L, U) by its strides, or AT_LAST (K, B, U),
    which belongs to the token last[k, b].
    """
    client, entry = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE + tl.arange(0, TILE)
    size, slot, unit = slots * UNITS, entry // UNITS, entry % UNITS
    inside, four = entry < size, slot * (4 * UNITS) + unit
    gate = gates + (client * length + token) * (4 * size) + four
    enter, forget, change, leave = _four(gate, inside, UNITS)
    shown = tl.load(bounded + (client * length + token) * size + entry, mask=inside)
    before = tl.load(cells + (client * (length + 1) + token) * size + entry, mask=inside)
    given = dy + client * dy_client + slot * dy_slot + unit
    if AT_LAST:
        here = inside & (tl.load(last + client * slots + slot, mask=inside, other=-1) == token)
        dstate = tl.load(given, mask=here, other=0.0)
    else:
        dstate = tl.load(given + token * dy_token, mask=inside, other=0.0)
    later = tl.zeros((TILE,), tl.float32)
    if not FIRST:
        dstate += tl.load(product + client * size + entry, mask=inside)
        later = tl.load(dcell + client * size + entry, mask=inside)
    into_cell = later + dstate * leave * (1.0 - shown * shown)
    to = g + (client * length + token) * (4 * size) + four
    tl.store(to, into_cell * change * enter * (1.0 - enter), mask=inside)
    tl.store(to + UNITS, into_cell * before * forget * (1.0 - forget), mask=inside)
    tl.store(to + 2 * UNITS, into_cell * enter * (1.0 - change * change), mask=inside)
    tl.store(to + 3 * UNITS, dstate * shown * leave * (1.0 - leave), mask=inside)
    tl.store(dcell + client * size + entry, into_cell * forget, mask=inside)

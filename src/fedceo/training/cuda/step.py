"""A step of SGD on a GPU: kernels that draw its noise on the way, where they know all that the Work asks for."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import prod

import torch
import triton
from torch import Tensor

from fedceo.training.batched import step as general
from fedceo.training.batched.cohort import Cohort
from fedceo.training.batched.products import Product
from fedceo.training.cuda import step_kernels
from fedceo.training.cuda.convolution import held_times, kept_in
from fedceo.training.cuda.linear import fitting
from fedceo.training.work import Work

ENTRIES = step_kernels.ENTRIES.value
LINEAR = {"TILE": 64, "TILE_IN": 64, "TILE_OUT": 64, "num_warps": 4, "num_stages": 1}


def fill_noise(keys: Tensor, step: Tensor, size: int) -> Tensor:
    """(K, size) standard normals, each a function of (its client's key, the step, the index of the entry)."""
    out = torch.empty(len(keys), size, device=keys.device)
    step_kernels.fill_noise_kernel[(len(keys), triton.cdiv(size, ENTRIES))](out, keys, step, size)
    return out


def take_step(cohort: Cohort, work: Work, done: Collection[str] = ()) -> None:
    """See take_step of batched/step.py, which takes the steps that the kernels do not know, with the same noise.

    done: parameters whose step `take_product` has taken; there are none under record privacy.
    """
    if not work.is_plain:
        noise = None if cohort.keys is None else fill_noise(cohort.keys, cohort.step, cohort.size)
        general.take_step(cohort, work, noise)
        return
    clients, row = cohort.weights.shape
    for first, last in _rest(places_of(cohort), done):
        step_kernels.take_step_kernel[(clients, triton.cdiv(last - first, ENTRIES))](
            *_buffers(cohort), cohort.gradients, _or(cohort.keys, cohort.steps), cohort.step, cohort.steps,
            cohort.rates, _or(cohort.stds, cohort.rates), cohort.divisors, row, first, last,
            work.momentum, work.proximal, NOISY=work.record is not None, **_flags(work), num_warps=4,
        )  # fmt: skip


def take_product(cohort: Cohort, work: Work, product: Product) -> None:
    """The plain step, without noise, of a linear layer whose gradient is left as a product."""
    (clients, slots, out), inputs, places = product.g.shape, product.x.shape[-1], places_of(cohort)
    tiles = LINEAR | {"TILE_OUT": fitting(out, LINEAR["TILE_OUT"])}
    grid = (clients, triton.cdiv(out, tiles["TILE_OUT"]), triton.cdiv(inputs, tiles["TILE_IN"]))
    step_kernels.linear_step_kernel[grid](
        product.g, product.x, _or(product.rows, product.counts), product.counts, slots, *_buffers(cohort),
        cohort.step, cohort.steps, cohort.rates, cohort.weights.shape[1], places[product.weight].first,
        places[product.bias].first if product.bias else 0, work.momentum, work.proximal,
        INPUTS=inputs, OUT=out, IN_PLACE=product.rows is not None, BIAS=product.bias is not None,
        HALF=kept_in() == torch.float16, HELD=held_times(kept_in()), **_flags(work), **tiles,
    )  # fmt: skip


def _buffers(cohort: Cohort) -> tuple[Tensor, Tensor, Tensor]:
    return cohort.weights, _or(cohort.momenta, cohort.weights), _or(cohort.starts, cohort.weights)


def _flags(work: Work) -> dict[str, bool]:
    return {"MOMENTUM": work.momentum != 0, "PROXIMAL": work.proximal != 0}


@dataclass(frozen=True)
class Place:
    """The entries of a row that hold a parameter."""

    first: int
    last: int


def places_of(cohort: Cohort) -> dict[str, Place]:
    """The place of every parameter in a row."""
    places, first = {}, 0
    for name, shape in cohort.shapes.items():
        places[name] = Place(first, first + prod(shape))
        first += prod(shape)
    return places


def _rest(places: dict[str, Place], done: Collection[str]) -> Iterator[tuple[int, int]]:
    """The ranges of a row between parameters that are done."""
    begin = None
    for name, place in places.items():
        if name in done and begin is not None:
            yield begin, place.first
            begin = None
        elif name not in done and begin is None:
            begin = place.first
    if begin is not None:
        yield begin, max(place.last for place in places.values())


def _or(tensor: Tensor | None, unread: Tensor) -> Tensor:
    """The tensor, or one that the kernel will not read: each of its pointers must point somewhere."""
    return unread if tensor is None else tensor

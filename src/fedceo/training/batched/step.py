"""A step of SGD by all clients of a cohort at once, in place."""

from math import prod

import torch
from torch import Tensor

from fedceo.training import terms
from fedceo.training.batched.cohort import Cohort
from fedceo.training.optimisers import adam_direction
from fedceo.training.work import Work


def take_step(cohort: Cohort, work: Work, noise: Tensor | None) -> None:
    """One step with all that a Work may ask for, by the clients that are not done.

    Args:
        cohort: the gradients of this step in `gradients`, sums of clipped ones under record privacy.
        noise: (K, D) standard normals under record privacy; they are overwritten.
    """
    g = cohort.gradients
    if noise is not None:
        assert cohort.stds is not None
        noise = noise.mul_(cohort.stds[:, None])
        parts = torch.split(noise, [prod(shape) for shape in cohort.shapes.values()], 1)
        for view, part in zip(cohort.named_gradients.values(), parts, strict=True):
            view += part.view_as(view)
        g /= cohort.divisors[:, None]
    _forget_fixed(cohort, work)
    if cohort.noised is not None:
        cohort.noised.copy_(g)
    for term in terms.active_terms(work):
        assert cohort.starts is not None
        direction = term.direction(cohort.weights, cohort.starts)
        if term.applies is not None:
            direction = direction * term.applies(work, direction)
        g.add_(direction, alpha=term.strength(work))
    if work.weight_decay:
        _forget_fixed(cohort, work)
    rates = torch.where(cohort.step < cohort.steps, cohort.rates, 0.0)[:, None]
    if cohort.squares is not None:
        assert cohort.momenta is not None
        # the number of the step stays on the device, so that a captured step counts on
        g = adam_direction(g, cohort.momenta, cohort.squares, (cohort.step + 1).to(g.dtype))
    elif cohort.momenta is not None:
        g = cohort.momenta.mul_(work.momentum).add_(g)
    if work.separate_decay:
        _decay(cohort, work, rates)
    cohort.weights.addcmul_(g, rates, value=-1.0)
    if cohort.shifts is not None:
        cohort.weights.addcmul_(cohort.shifts, (cohort.step < cohort.steps).to(cohort.shifts.dtype)[:, None])
    if terms.projects(work):
        assert cohort.starts is not None
        cohort.weights.copy_(terms.project(work, cohort.weights, cohort.starts))


def ascend(cohort: Cohort, work: Work) -> Tensor:
    """Move the weights to where the gradient shall be taken; returns the (K, row) weights to come back to."""
    before = cohort.weights.clone()
    if cohort.noised is None:
        _forget_fixed(cohort, work)
    uphill = cohort.gradients if cohort.noised is None else cohort.noised
    cohort.weights.add_(terms.ascent(work, uphill))
    return before


def _decay(cohort: Cohort, work: Work, rates: Tensor) -> None:
    """Shrink the weights that train by eta * lambda; rates: (K, 1), 0 for clients that are done."""
    for name, view in cohort.named.items():
        if work.only is None or name in work.only:
            view.mul_((1 - work.separate_decay * rates).view(-1, *(1,) * (view.ndim - 1)))


def _forget_fixed(cohort: Cohort, work: Work) -> None:
    """Set the gradients of parameters that do not train to zero; a program writes anything there."""
    if work.only is not None:
        for name, view in cohort.named_gradients.items():
            if name not in work.only:
                view.zero_()

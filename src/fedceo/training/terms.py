"""Terms of local training beside the gradient of the loss: pulls along a direction, a ball around the start, an ascent.

Models are rows here, (K, D): the D parameters of a client in a row. The batched trainer has a row for each client of a
cohort, the loop has K = 1. A new term that is added to the gradient is a field of Work, its strength, and an entry of
TERMS; both trainers read that table, and the step that is one kernel on a GPU leaves every Work that it does not know
to the general step (Work.is_plain).

The trainers share the terms, not the rounding: the loop sums the strengths along a direction and multiplies once, the
batched step adds term by term with fused multiply-adds. So each gives the bits that it has always given.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.work import Work


@dataclass(frozen=True)
class Term:
    """A vector that is added to each client's gradient: strength * direction.

    Attributes:
        field: the field of Work that holds the strength; with strength 0 there is no term.
        direction: a function of weights and starts, (K, D) each, to (K, D).
        applies: a function of the Work and the direction to (K, 1), true for the clients that the term acts on; without
            it the term acts on all.
    """

    field: str
    direction: Callable[[Tensor, Tensor], Tensor]
    applies: Callable[[Work, Tensor], Tensor] | None = None

    def strength(self, work: Work) -> float:
        return float(getattr(work, self.field))


def displacement(weights: Tensor, starts: Tensor) -> Tensor:
    """(K, D) way from each client's start to its weights."""
    return weights - starts


def is_outside(work: Work, moved: Tensor) -> Tensor:
    """(K, 1) true for clients farther from their start than the Work's outside_radius."""
    return row_norms(moved) > work.outside_radius


TERMS = (
    Term("proximal", displacement),
    Term("outside", displacement, is_outside),
    Term("added_decay", lambda weights, starts: weights),
)
"""The terms in the order in which they are added; terms along one direction stand side by side."""


def active_terms(work: Work) -> list[Term]:
    """The terms that a Work asks for."""
    return [term for term in TERMS if term.strength(work)]


def needs_starts(work: Work) -> bool:
    """Whether the steps of a Work look back at the weights that training started from."""
    return bool(active_terms(work)) or projects(work)


def projects(work: Work) -> bool:
    """Whether the weights are projected after every step."""
    return work.radius is not None


def project(work: Work, weights: Tensor, starts: Tensor) -> Tensor:
    """(K, D) weights of which rows farther from their start than work.radius are put back to that distance."""
    assert work.radius is not None
    moved = displacement(weights, starts)
    norms = row_norms(moved)
    nearer = starts + moved * (work.radius / norms.clamp_min(1e-30))
    return torch.where(norms > work.radius, nearer, weights)


def rescaled(work: Work, starts: Weights, trained: dict[str, Tensor], steps: Sequence[int]) -> dict[str, Tensor]:
    """name -> (K, ...) weights whose change since the start counts for work.worth steps; steps: of each client."""
    if work.worth is None:
        return trained
    factors = [work.worth / way_of_steps(work, count) for count in steps]

    def scaled(start: Tensor, w: Tensor) -> Tensor:
        return start + w.new_tensor(factors).view(-1, *[1] * (w.ndim - 1)) * (w - start)

    return {name: scaled(starts[name].to(w), w) for name, w in trained.items()}


def way_of_steps(work: Work, steps: int) -> float:
    """How far so many steps go, in units of the learning rate, where every gradient is one.

    Without momentum and pull it is their number; in general the sum of the weights that a change gives to its
    gradients, |a|_1 of Wang et al. 2020.
    """
    way = momentum = 0.0
    for _ in range(steps):
        momentum = work.momentum * momentum + 1 - work.learning_rate * work.proximal * way
        way += momentum
    return way


def ascent(work: Work, uphill: Tensor) -> Tensor:
    """(K, D) way of length work.ascent along `uphill` to where gradients are taken; a row of zeros leads nowhere."""
    return uphill * (work.ascent / row_norms(uphill).clamp_min(1e-30))


def row_norms(rows: Tensor) -> Tensor:
    """(K, 1) L2 norms of the rows."""
    return rows.norm(dim=1, keepdim=True)

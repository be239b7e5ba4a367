"""The loss of a shared representation B: every client's last layer is fitted to B's features, exactly.

Only the span of B counts, so B is made orthonormal first. The last layers carry a small ridge, since a client with few
records may be separable, where the best last layer would be infinite.
"""

from collections.abc import Callable, Sequence

import torch
from problem import OUTPUTS, RANK, Problem, contrast_basis
from torch import Tensor

RIDGE = 1e-2


def representation_loss(problem: Problem, body: Tensor) -> float:
    """Mean over clients of the least loss that a last layer of their own reaches; body: (RANK, d)."""
    heads, body = _no_heads(problem), body.detach().double()
    return _minimise([heads], lambda: _loss(problem, body, heads))


def least_representation_loss(problem: Problem) -> float:
    """The least loss over all bodies, searched from the planted one: the problem is not convex in the body."""
    heads, body = _no_heads(problem), problem.direction.clone().requires_grad_()
    return _minimise([body, heads], lambda: _loss(problem, body, heads))


def _no_heads(problem: Problem) -> Tensor:
    return torch.zeros(len(problem.labels), OUTPUTS, RANK, dtype=torch.float64, requires_grad=True)


def _loss(problem: Problem, body: Tensor, heads: Tensor) -> Tensor:
    features = problem.points @ torch.linalg.qr(body.T).Q
    logits = torch.einsum("jr,khr,ch->kjc", features, heads, contrast_basis())
    wrong = logits.logsumexp(2) - logits.gather(2, problem.labels[:, :, None])[:, :, 0]
    return wrong.mean() + RIDGE / 2 * heads.square().sum((1, 2)).mean()


def _minimise(over: Sequence[Tensor], loss: Callable[[], Tensor]) -> float:
    optimizer = torch.optim.LBFGS(
        over, max_iter=300, tolerance_grad=1e-10, tolerance_change=1e-14, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)
    return loss().item()

"""Jain et al. 2021: shared linear representations under user-level joint privacy, the linear method itself.

Every user i has records y = <x, U v_i> + noise with an orthonormal U (d x k) that all share and a v_i of its own. A
private initialisation takes the largest eigenvectors of a noised moment matrix; then users fit v_i to their records and
send clipped statistics from which the server solves for U. Memory grows with (d k)^2: for synthetic regression.

    basis = alternate(users, rank=2, rounds=5, clip=10.0, noise_multiplier=1.0, generator=generator)

Privacy: everything a user sends in a round is one vector of norm at most `clip`, so that each of the rounds + 1
releases (the initialisation is one) is a Gaussian mechanism with the noise multiplier. If all users take part, nothing
is amplified: mu = sqrt(rounds + 1) / noise_multiplier, for two data sets in one of which a user sends zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedceo.lazy import torch


@dataclass(frozen=True)
class User:
    """One user's records: x (n, d), y (n,)."""

    x: torch.Tensor
    y: torch.Tensor


def alternate(
    users: Sequence[User],
    *,
    rank: int,
    rounds: int,
    clip: float,
    noise_multiplier: float,
    generator: torch.Generator,
    ridge: float = 1e-3,
) -> torch.Tensor:
    """The shared representation U, (d, rank), orthonormal.

    Args:
        clip: largest norm of what a user sends at once.
        noise_multiplier: sigma; the sum over users carries noise of standard deviation sigma * clip in every entry.
        ridge: the penalty in the users' and the server's least squares.
    """
    basis = initial_basis(users, rank, clip, noise_multiplier, generator)
    for _ in range(rounds):
        total = noised_sum([_statistics(user, basis, ridge) for user in users], clip, noise_multiplier, generator)
        size = basis.numel()
        gram, moment = total[: size * size].view(size, size), total[size * size :]
        gram = (gram + gram.T) / 2 + ridge * len(users) * torch.eye(size, dtype=basis.dtype)
        solved = torch.linalg.solve(gram, moment).view_as(basis)
        basis = torch.linalg.qr(solved).Q
    return basis


def initial_basis(
    users: Sequence[User], rank: int, clip: float, noise_multiplier: float, generator: torch.Generator
) -> torch.Tensor:
    """The largest eigenvectors of the noised sum of moments y_a y_b sym(x_a x_b') over disjoint pairs of records."""
    total = noised_sum([_moments(user).flatten() for user in users], clip, noise_multiplier, generator)
    width = users[0].x.shape[1]
    matrix = total.view(width, width)
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    return vectors[:, values.abs().argsort(descending=True)[:rank]]


def fit_user(user: User, basis: torch.Tensor, ridge: float = 1e-3) -> torch.Tensor:
    """The user's v_i, (k,): ridge regression of y on U'x."""
    features = user.x @ basis
    gram = features.T @ features / len(features) + ridge * torch.eye(basis.shape[1], dtype=basis.dtype)
    return torch.linalg.solve(gram, features.T @ user.y / len(features))


def noised_sum(
    vectors: Sequence[torch.Tensor], clip: float, noise_multiplier: float, generator: torch.Generator
) -> torch.Tensor:
    """The sum of vectors of norm at most `clip`, and Gaussian noise; a vector that is not finite counts as zero."""
    total = torch.zeros_like(vectors[0])
    for vector in vectors:
        norm = float(vector.double().norm())
        if math.isfinite(norm):
            total += vector * min(1.0, clip / max(norm, 1e-300))
    noise = torch.randn(total.shape, generator=generator, dtype=total.dtype)
    return total + noise_multiplier * clip * noise


def _moments(user: User) -> torch.Tensor:
    half = len(user.y) // 2
    a, b = slice(0, half), slice(half, 2 * half)
    weights = (user.y[a] * user.y[b])[:, None]
    product = (weights * user.x[a]).T @ user.x[b] / half
    return (product + product.T) / 2


def _statistics(user: User, basis: torch.Tensor, ridge: float) -> torch.Tensor:
    """Gram matrix and moment of vec(x v'), from records that v was not fitted to."""
    half = len(user.y) // 2
    vector = fit_user(User(user.x[:half], user.y[:half]), basis, ridge)
    rows = torch.einsum("nd,k->ndk", user.x[half:], vector).flatten(1)
    gram, moment = rows.T @ rows / len(rows), rows.T @ user.y[half:] / len(rows)
    return torch.cat([gram.flatten(), moment])

"""Jain et al. on the problem that their theorem is about: regression on a direction that all users share.

User i has d records x ~ N(0, I) with y = <x, U> v_i and v_i near 1, without noise in y, so that the least loss is 0 and
the excess is all due to privacy.
"""

import math

import torch

from fedceo.methods.jain import User, alternate, fit_user

ROUNDS = 3
SPREAD = 0.3
"""Standard deviation of v_i."""


def clip_of(dimension: int) -> float:
    """A user sends a d x d matrix of norm about sqrt(3 d), and a vector: few are cut."""
    return 2 * math.sqrt(dimension)


def regression_excess(dimension: int, users: int, noise_multiplier: float, seed: int) -> float:
    """Mean over users of half the squared error with U as the method found it and v_i fitted to it."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.linalg.qr(torch.randn(dimension, 1, generator=generator)).Q
    own = 1 + SPREAD * torch.randn(users, 1, generator=generator)
    records = torch.randn(users, dimension, dimension, generator=generator)
    people = [User(x, x @ direction @ v) for x, v in zip(records, own, strict=True)]
    found = alternate(
        people,
        rank=1,
        rounds=ROUNDS,
        clip=clip_of(dimension),
        noise_multiplier=noise_multiplier,
        generator=generator,
    )
    errors = [(user.x @ found @ fit_user(user, found, ridge=1e-9) - user.y).square().mean() / 2 for user in people]
    return float(torch.stack(errors).double().mean())

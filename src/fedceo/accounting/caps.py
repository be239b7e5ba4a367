"""Caps on participations: when amplified rows hold although a cap ties the rounds together."""

import math
from collections.abc import Callable

from fedceo.accounting.binomial import above
from fedceo.accounting.plan import NoiseSite, Question

SHARE = 1e-3
"""The fraction of delta that is kept for runs in which somebody reaches the cap."""


def cap_is_harmless(question: Question) -> bool:
    """Whether clients that send noise alone once they are at their cap can only lower epsilon against averages.

    They can where memberships are independent and hidden, and the other world has nothing of the client (D5).
    """
    plan = question.plan
    return plan.sampling != "fixed" and plan.noise_site is NoiseSite.SUM and plan.adjacency != "replace-one"


def epsilon_if_nobody_is_capped(question: Question, epsilon_at: Callable[[float], float]) -> float:
    """The epsilon of a run without a cap, where it holds for one with it; otherwise infinity (D15).

    Args:
        epsilon_at: the epsilon without a cap at some delta.
    """
    plan, cap = question.plan, question.plan.participation_cap
    assert cap is not None
    if cap_is_harmless(question):
        return epsilon_at(plan.delta)
    rate = max(plan.rate, question.most_reports / plan.clients)
    reached = plan.clients * above(cap, question.turns, rate)
    if reached > SHARE * plan.delta:
        return math.inf
    epsilon = epsilon_at((1 - SHARE) * plan.delta)
    return epsilon if reached * (1 + math.exp(min(epsilon, 700.0))) <= SHARE * plan.delta else math.inf

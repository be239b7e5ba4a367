"""How often a client takes part: the counts that rows without amplification are composed over."""

from typing import NamedTuple

from fedceo.accounting.binomial import quantile
from fedceo.accounting.plan import Question
from fedceo.accounting.reasons import EVERY_ROUND, HARDLY_EXCEEDED, MOST_OF_ANY, THE_CAP, THE_MEAN

QUANTILE = 1 - 1e-5
"""A client is drawn more often than the high-probability count with probability 1e-5."""


class Count(NamedTuple):
    """A number of rounds that a client is in, and what that number means."""

    value: float
    meaning: str
    is_known: bool = True


def participation_counts(question: Question) -> list[Count]:
    """The counts to account for, the one that is known or enforced first, else one that is hardly ever exceeded."""
    plan, rounds = question.plan, question.rounds
    if question.realised.participations is not None:
        return [Count(question.realised.participations, MOST_OF_ANY)]
    if plan.everyone_is_in and plan.participation_cap is None:
        return [Count(rounds, EVERY_ROUND)]
    drawn = [
        Count(quantile(QUANTILE, rounds, plan.rate), HARDLY_EXCEEDED, is_known=False),
        Count(plan.rate * rounds, THE_MEAN, is_known=False),
    ]
    if plan.participation_cap is None:
        return drawn
    cap = min(plan.participation_cap, rounds)
    return [Count(cap, THE_CAP), *(count for count in drawn if count.value < cap)]

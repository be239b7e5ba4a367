"""A vote of all clients on how much of its own deviation from the mean each shall keep.

Each record votes for the values with which its client's model classifies it right. Only differences between values
matter, so the mean of a record's votes is taken off them, which halves how far one record can move their sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from fedceo.experiment.method_table import Counts
from fedceo.lazy import torch
from fedceo.methods.base import State
from fedceo.methods.counting import check_counts

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment
    from fedceo.methods.fedceo import FedCEOSettings

ALPHAS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
"""What is voted on, ascending."""
MOST = (len(ALPHAS) // 2 * -(-len(ALPHAS) // 2) / len(ALPHAS)) ** 0.5
"""The length of a record's votes, at most: those of one that is right with half of the values."""
VOTES = "votes"
"""The name in State.server of the sum of all votes, and of how many clients have voted."""


def check_votes(settings: FedCEOSettings, experiment: Experiment) -> None:
    """Nothing but the models that are handed out in the end may depend on alpha, and they must be there to vote on."""
    if settings.restart != "mean":
        raise ValueError(f'method.restart "{settings.restart}", expected "mean" with method.alpha "voted"')
    if experiment.train.rounds < 2:
        raise ValueError(
            'train.rounds: 1, expected 2 or more with method.alpha "voted": the last round votes on models'
        )
    if experiment.privacy.participation_cap is not None:
        raise ValueError(
            'privacy.participation_cap: leaves the last round, in which method.alpha is "voted", to those below it; '
            "expected none"
        )
    if settings.interval != 1:
        raise ValueError(f'method.interval: {settings.interval}, expected 1 with method.alpha "voted"')
    check_counts(experiment, 'method.alpha "voted"', "votes")


def counts_for_votes(noise: float) -> Counts:
    """For the accountant: a record in the place of another may vote against all that the other voted for."""
    return Counts("votes on alpha", noise, MOST, 2 * MOST, in_last_round=True)


def votes_of(right: torch.Tensor) -> torch.Tensor:
    """The votes of records, (n, values) in float64, given whether each is classified right with each value."""
    votes = right.double()
    return votes - votes.mean(1, keepdim=True)


def with_votes(state: State, votes: Mapping[int, torch.Tensor]) -> State:
    """The state with the sum of clients' votes."""
    cast = torch.stack(list(votes.values())).double()
    return replace(state, server={**state.server, VOTES: {"sum": cast.sum(0), "voters": torch.tensor(len(cast))}})


def elected_in(state: State, noise: float, otherwise: float) -> float:
    """The least value whose votes are within the noise of a difference of the most; `otherwise` if nobody has voted.

    Records vote on models that have learnt from them, which flatters large values; so ties go to the small one.

    Args:
        noise: standard deviation of that on a client's votes for one value.
    """
    if VOTES not in state.server:
        return otherwise
    votes, voters = state.server[VOTES]["sum"].tolist(), int(state.server[VOTES]["voters"])
    enough = max(votes) - noise * (2 * voters) ** 0.5
    return next(value for value, count in zip(ALPHAS, votes, strict=True) if count >= enough)

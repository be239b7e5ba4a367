"""Released averages as an observer sees them: who may be in, and how much noise there is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from fedceo.accounting.gaussian import binomial

MOST_STRATA = 200
"""Strata of a Poisson cohort's size that are kept apart; neighbours beyond that are taken together, at their worst."""


class Stratum(NamedTuple):
    """Rounds of one kind: their probability, the chance q that the client is in one, the noise multiplier z."""

    probability: float
    rate: float
    multiplier: float


@dataclass(frozen=True)
class Round:
    """One released average, as an observer sees it.

    Each alternative is a mixture of strata that the observer can tell apart; the worst alternative counts. With
    hidden_size the cohort is a Poisson one whose size nobody sees. With known_memberships the observer also knows
    whether the client is in.
    """

    alternatives: tuple[tuple[Stratum, ...], ...]
    adjacency: str
    hidden_size: bool = False
    known_memberships: bool = False
    left_out: float = 0.0  # probability of strata not listed, counted as fully exposed

    @classmethod
    def of(cls, rate: float, multiplier: float, adjacency: str, *, hidden_size: bool = False) -> "Round":
        """A round with one stratum: fixed-size sampling, or Poisson sampling with hidden_size."""
        return cls(((Stratum(1.0, rate, multiplier),),), adjacency, hidden_size)

    @property
    def strata(self) -> list[Stratum]:
        return [stratum for alternative in self.alternatives for stratum in alternative]

    @property
    def likeliest(self) -> Stratum:
        """The most probable stratum; of several, the one that the client is likelier to be in."""
        return max(self.strata, key=lambda stratum: (stratum.probability, stratum.rate))

    @property
    def shift(self) -> int:
        """How far the sum moves when the data of a client that is known to be in changes, in units of C."""
        return 2 if self.adjacency == "replace-one" else 1


Averages: TypeAlias = tuple[tuple[Round, int], ...]
"""Kinds of released averages, and how many rounds there were of each."""


def largest_rate(averages: Averages) -> float:
    """The largest probability, of any kind of round, that the client is in one."""
    rates = (
        sum(s.probability * s.rate for s in alternative) + average.left_out
        for average, _ in averages
        for alternative in average.alternatives
    )
    return min(max(rates), 1.0)


def drawn_round(
    trials: int,
    probability: float,
    kind: Callable[[int], tuple[float, float] | None],
    adjacency: str,
    negligible: float,
) -> Round:
    """Rounds of many kinds: for m ~ Bin(n, p), seen by all, kind(m) is (q, z), or None where nothing is released.

    A Poisson cohort whose size m shows is, given m, a fixed-size one: m of n without replacement (D4). Sizes that are
    less probable than negligible are counted as fully exposed.
    """
    counts, weights, left_out = binomial(trials, probability, negligible)
    strata = [
        Stratum(float(weight), *found)
        for m, weight in zip(counts.astype(int).tolist(), weights, strict=True)
        if (found := kind(m))
    ]
    return Round((tuple(_grouped(strata)),), adjacency, left_out=left_out)


def _grouped(strata: list[Stratum]) -> Iterator[Stratum]:
    """Neighbouring strata as one, with the largest rate and the least noise of any of them."""
    if not strata:
        return
    for group in np.array_split(np.array(strata), min(len(strata), MOST_STRATA)):
        yield Stratum(float(group[:, 0].sum()), float(group[:, 1].max()), float(group[:, 2].min()))

"""A limit on what an observer may learn: the run ends before the round that would exceed it."""

from dataclasses import replace
from typing import NamedTuple

from fedceo.accounting.ledger import Entry, Ledger
from fedceo.accounting.plan import Spec
from fedceo.accounting.rows import answer
from fedceo.errors import UsageError


class Spending(NamedTuple):
    """All that epsilon grows with; what is no more in every part costs no more."""

    rounds: int
    fewest_reports_negated: int
    most_reports: int
    smoothings: int
    participations: int

    def within(self, other: "Spending") -> bool:
        return all(mine <= others for mine, others in zip(self, other, strict=True))


class Budget:
    """privacy.max_epsilon for one observer.

    An exact epsilon takes about a second, too long for every round. So when one is computed, the budget also looks for
    how many more rounds of the kind seen so far would fit, and lets those pass.
    """

    def __init__(self, limit: float, observer: str, plan: Spec) -> None:
        self.limit, self.observer, self.plan = limit, observer, plan
        self._by_participation = observer == "server" or plan.mechanism == "record"
        self._safe: Spending | None = None
        found = answer(plan, observer)
        if found.epsilon is None:
            raise UsageError(f"privacy.max_epsilon: the {observer} has no epsilon: {found.assumption}")

    def refuses(self, ledger: Ledger, entry: Entry) -> str | None:
        """Why the round may not be taken, or None."""
        spec = ledger.spent(self.plan, ahead=entry)
        spending = self._spending(spec)
        if self._safe is not None and spending.within(self._safe):
            return None
        epsilon = self._epsilon(spec)
        if epsilon > self.limit:
            return (
                f"privacy.max_epsilon = {self.limit:g}: round {entry.round} would raise the {self.observer}'s epsilon "
                f"to {epsilon:.4g}"
            )
        self._safe = self._spending(self._furthest(spec))
        return None

    def _epsilon(self, spec: Spec) -> float:
        found = answer(spec, self.observer).epsilon
        return float("inf") if found is None else found

    def _spending(self, spec: Spec) -> Spending:
        if self._by_participation:
            return Spending(0, 0, 0, 0, spec.participations or 0)
        told = spec.participations or 0 if spec.absence_tells else 0
        return Spending(spec.rounds, -spec.fewest_reports, spec.most_reports, spec.smoothed_rounds, told)

    def _furthest(self, spec: Spec) -> Spec:
        """The most rounds that fit if those to come are like the worst so far, found by bisection."""
        fits, too_many = 0, max(self.plan.rounds - spec.rounds, 0) + 1
        step = too_many - 1
        while step > 0:
            if self._epsilon(self._further(spec, fits + step)) <= self.limit:
                fits += step
            else:
                too_many = fits + step
            step = (too_many - fits) // 2
        return self._further(spec, fits)

    def _further(self, spec: Spec, rounds: int) -> Spec:
        if self._by_participation:
            return replace(spec, participations=(spec.participations or 0) + rounds)
        smoothings = None if spec.interval is None else spec.smoothed_rounds + -(-rounds // spec.interval)
        later = replace(spec, rounds=spec.rounds + rounds, smoothings=smoothings, reports=None)
        if spec.reports is None:
            return later
        # fewer reports carry less noise, more of them more likely the client: the costliest number is at either end
        ends = {spec.fewest_reports, max(spec.fewest_reports, spec.most_reports)}  # without any round there is no most
        return max((replace(later, reports=(*spec.reports, (end, rounds))) for end in ends), key=self._epsilon)

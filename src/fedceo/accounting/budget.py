"""A limit on what an observer may learn: the run ends before the round that would exceed it."""

from dataclasses import replace
from typing import NamedTuple

from fedceo.accounting.ledger import Entry, Ledger
from fedceo.accounting.plan import NoiseSite, Plan, Question, Realised
from fedceo.accounting.printed import in_hundredths
from fedceo.accounting.rows import answer
from fedceo.errors import UsageError


class Spending(NamedTuple):
    """Everything that epsilon grows with: a run that has no more of any part costs no more."""

    rounds: int
    fewest_reports_negated: int
    most_reports: int
    smoothings: int
    participations: int
    turns: int = 0

    def within(self, other: "Spending") -> bool:
        return all(mine <= others for mine, others in zip(self, other, strict=True))


class Budget:
    """privacy.max_epsilon for one observer.

    An exact epsilon takes about a second, too long for every round. So when one is computed, the budget also looks for
    how many more rounds of the kind seen so far would fit, and lets those pass.
    """

    def __init__(self, limit: float, observer: str, plan: Plan) -> None:
        self.limit, self.observer, self.plan = limit, observer, plan
        self._by_participation = observer == "server" or plan.noise_site is NoiseSite.STEPS
        self._safe: Spending | None = None
        found = answer(plan, observer)
        if found.epsilon is None:
            raise UsageError(f"privacy.max_epsilon: the {observer} has no epsilon: {found.assumption}")

    def refuses(self, ledger: Ledger, entry: Entry) -> str | None:
        """Why the round may not be taken, or None."""
        realised = ledger.realised(self.plan, ahead=entry)
        spending = self._spending(realised)
        if self._safe is not None and spending.within(self._safe):
            return None
        epsilon = self._epsilon(realised)
        if epsilon > self.limit:
            return (
                f"privacy.max_epsilon = {self.limit:g}: round {entry.round} would raise the {self.observer}'s epsilon "
                f"to {in_hundredths(epsilon)}"
            )
        self._safe = self._spending(self._furthest(realised))
        return None

    def _epsilon(self, realised: Realised) -> float:
        found = answer(self.plan, self.observer, realised).epsilon
        return float("inf") if found is None else found

    def _spending(self, realised: Realised) -> Spending:
        question, participations = Question(self.plan, realised), realised.participations or 0
        if self._by_participation:
            return Spending(0, 0, 0, 0, participations)
        known = participations if question.absence_tells else 0
        return Spending(
            question.rounds,
            -question.fewest_reports,
            question.most_reports,
            question.smoothings,
            known,
            question.turns,
        )

    def _furthest(self, realised: Realised) -> Realised:
        """The most rounds that fit if those to come are like the worst so far, found by bisection."""
        left = self.plan.rounds - Question(self.plan, realised).rounds
        fits, too_many = 0, max(left, 0) + 1
        step = too_many - 1
        while step > 0:
            if self._epsilon(self._further(realised, fits + step)) <= self.limit:
                fits += step
            else:
                too_many = fits + step
            step = (too_many - fits) // 2
        return self._further(realised, fits)

    def _further(self, realised: Realised, rounds: int) -> Realised:
        """The run with so many more rounds."""
        question, interval = Question(self.plan, realised), self.plan.interval
        if self._by_participation:
            return replace(realised, participations=(realised.participations or 0) + rounds)
        smoothings = None if interval is None else question.smoothings + -(-rounds // interval)
        turns = None if self.plan.groups is None else question.turns + -(-rounds // self.plan.groups)
        later = replace(realised, rounds=question.rounds + rounds, smoothings=smoothings, reports=None, turns=turns)
        if realised.reports is None:
            return later
        # fewer reports carry less noise, more of them more likely the client: the costliest number is at either end
        fewest = question.fewest_reports
        ends = {fewest, max(fewest, question.most_reports)}  # without any round there is no most
        return max((replace(later, reports=(*realised.reports, (end, rounds))) for end in ends), key=self._epsilon)

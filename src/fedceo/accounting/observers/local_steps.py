"""Record-level privacy: noise inside local training, which holds against everybody, the server included."""

import math
from typing import ClassVar

import numpy as np

from fedceo.accounting import reasons
from fedceo.accounting.observers.base import VIEWS, Answer, View
from fedceo.accounting.participations import Count, participation_counts
from fedceo.accounting.plan import Question, RecordSteps
from fedceo.accounting.pld import averages_epsilon
from fedceo.accounting.renyi import Curve, drawn_curve, round_curve
from fedceo.accounting.rounds import Round
from fedceo.experiment.method_table import Counts


def steps_answer(question: Question, count: Count) -> Answer:
    """DP-SGD composed over so many participations of one client, the worst kind of client (D9)."""
    plan = question.plan
    if plan.adjacency == "add-remove":
        return Answer(None, reasons.NONE, reasons.BATCHES_CHANGE, "poisson", "record")
    participations = math.ceil(count.value - 1e-9)  # a mean of 30 must not become 31 by rounding errors

    counts = [(_counts_of(plan.counts, plan.adjacency), 1)] if plan.counts is not None and participations else []

    def epsilon_of(kind: RecordSteps) -> float:
        return averages_epsilon(((_step(question, kind), participations * kind.steps), *counts), plan.delta)

    # which kind is the worst depends on noise and participations: few large batches, or many small ones
    worst = max(plan.record_steps, key=lambda kind: (epsilon_of(kind), kind.rate, kind.steps))
    assumption = (
        f"one record of a client, not the client, against anyone including the server; {worst.steps} Poisson "
        f"steps at rate {worst.rate:.4g} in each of {participations} participations, {count.meaning}"
    )
    if plan.counts is not None and participations:
        assumption += f"; and the client's {plan.counts.of}, released once with noise of {plan.counts.noise:g}"
    return Answer(epsilon_of(worst), reasons.POISSON, assumption, "poisson", "record")


@VIEWS.register("local steps", "private local steps of a client, whoever looks at their results")
class LocalSteps(View):
    observers = ("outsider", "participant", "server", "client")

    def supports(self, question: Question, observer: str) -> bool:
        plan = question.plan
        return plan.protects_records and (observer != "client" or plan.has_personal_models)

    def answer(self, question: Question, observer: str) -> Answer:
        return steps_answer(question, participation_counts(question)[0])

    def divergence(self, question: Question, observer: str) -> Curve | None:
        plan, count = question.plan, participation_counts(question)[0]
        if plan.adjacency == "add-remove":
            return None
        participation = np.maximum.reduce(
            [kind.steps * round_curve(_step(question, kind)) for kind in plan.record_steps]
        )
        counts = 0.0 if plan.counts is None else round_curve(_counts_of(plan.counts, plan.adjacency))
        if count.is_known:
            return count.value * participation + counts
        return question.rounds * drawn_curve(plan.rate, participation) + counts


def _step(question: Question, kind: RecordSteps) -> Round:
    """A local step, as a round of records."""
    return Round.of(kind.rate, question.plan.noise_multiplier, question.plan.adjacency, hidden_size=True)


def _counts_of(counts: Counts, adjacency: str) -> Round:
    """The release of a client's counts, as a round that the client is in (D20)."""
    # a round of replace-one takes it that a replaced record moves the sum twice as far as one that becomes zero
    multiplier = 2 * counts.noise / counts.replaced if adjacency == "replace-one" else counts.noise / counts.moved
    return Round.of(1.0, multiplier, adjacency, hidden_size=True)


class OtherCount(View):
    """A further row for a number of participations that is neither known nor enforced."""

    observers = ("server",)
    meaning: ClassVar[str]

    def supports(self, question: Question, observer: str) -> bool:
        return question.plan.protects_records and self._count(question) is not None

    def answer(self, question: Question, observer: str) -> Answer:
        count = self._count(question)
        assert count is not None
        return steps_answer(question, count)

    def _count(self, question: Question) -> Count | None:
        further = participation_counts(question)[1:]
        return next((count for count in further if count.meaning == self.meaning), None)


@VIEWS.register("local steps, likely count", "the same for participations that a client hardly ever exceeds")
class LikelyCount(OtherCount):
    position = 1
    meaning = reasons.HARDLY_EXCEEDED


@VIEWS.register("local steps, mean count", "the same for the mean number of participations")
class MeanCount(OtherCount):
    position = 2
    meaning = reasons.THE_MEAN


@VIEWS.register("whole client", "a whole client under record-level privacy")
class WholeClient(View):
    observers = ("outsider",)
    position = 3

    def supports(self, question: Question, observer: str) -> bool:
        return question.plan.protects_records

    def answer(self, question: Question, observer: str) -> Answer:
        return Answer(None, reasons.NONE, reasons.RECORDS_ONLY)

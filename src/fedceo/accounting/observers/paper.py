"""The paper's closed form, which nobody is promised; its row is there to compare with."""

import math

from fedceo.accounting import reasons
from fedceo.accounting.observers.base import VIEWS, Answer, View
from fedceo.accounting.plan import Question


@VIEWS.register("paper", "the paper's closed form, for comparison")
class Paper(View):
    """K sqrt(T ln(1/delta)) / (N sigma): the paper's lemma with its unknown constant c2 set to 1."""

    observers = ("paper",)
    position = 4

    def supports(self, question: Question, observer: str) -> bool:
        return question.plan.protects_clients

    def answer(self, question: Question, observer: str) -> Answer:
        plan = question.plan
        epsilon = (
            plan.cohort / plan.clients * math.sqrt(question.rounds * math.log(1 / plan.delta)) / plan.noise_multiplier
        )
        return Answer(epsilon, reasons.PAPER, reasons.AS_THE_PAPER_SAYS, "poisson")

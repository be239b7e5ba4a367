"""Runs without noise, whose observers are all promised nothing."""

import math

from fedceo.accounting import reasons
from fedceo.accounting.observers.base import VIEWS, Answer, View
from fedceo.accounting.plan import NoiseSite, Question


@VIEWS.register("no guarantee", "a run without noise, which promises nothing to anybody")
class NoGuarantee(View):
    observers = ("outsider", "participant", "server", "client")

    def supports(self, question: Question, observer: str) -> bool:
        plan = question.plan
        if plan.protects_clients or plan.protects_records:
            return False
        return observer != "client" or plan.has_personal_models

    def answer(self, question: Question, observer: str) -> Answer:
        if question.plan.noise_site is NoiseSite.NOWHERE:
            return Answer(None, reasons.NONE, reasons.NO_MECHANISM)
        return Answer(math.inf, reasons.NONE, reasons.NO_NOISE)

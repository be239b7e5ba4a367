"""The server, which sees each upload and who sent it."""

import math

from fedceo.accounting import reasons
from fedceo.accounting.gaussian import drawn_gaussian_epsilon, gaussian_epsilon
from fedceo.accounting.observers.base import VIEWS, Answer, View
from fedceo.accounting.participations import participation_counts
from fedceo.accounting.plan import NoiseSite, Question
from fedceo.accounting.released import upload_mu
from fedceo.accounting.renyi import Curve, drawn_gaussians_curve, gaussian_curve


@VIEWS.register("uploads", "each upload and who sent it")
class Uploads(View):
    """Uploads that compose over a client's participations without amplification (D1, D2)."""

    observers = ("server",)

    def supports(self, question: Question, observer: str) -> bool:
        return question.plan.protects_clients

    def answer(self, question: Question, observer: str) -> Answer:
        plan = question.plan
        if plan.noise_site is NoiseSite.SUM:
            return Answer(None, reasons.NONE, reasons.TRUSTED_SERVER)
        if plan.adjacency == "add-remove":
            return Answer(None, reasons.NONE, reasons.SERVER_SEES_PRESENCE)
        shares = "K" if plan.min_reports is None else "min_reports"
        sees = f"sees each upload, z = sigma/sqrt({shares}), and who sent it, so nothing is amplified"
        mu, (count, meaning, is_known) = upload_mu(question), participation_counts(question)[0]
        if is_known:
            epsilon = gaussian_epsilon(mu * math.sqrt(count), plan.delta)
            return Answer(epsilon, reasons.CLOSED_FORM, reasons.joined(sees, f"{count:g} uploads, {meaning}"))
        epsilon = drawn_gaussian_epsilon(mu, plan.rate, question.rounds, plan.delta)
        mean = plan.rate * question.rounds
        of_mean = gaussian_epsilon(mu * math.sqrt(mean), plan.delta)
        over = f"over the draw of the cohorts; for a client with the mean of {mean:g} uploads it is {of_mean:.4g}"
        return Answer(epsilon, reasons.MIXED_OVER_COHORTS, reasons.joined(sees, over))

    def divergence(self, question: Question, observer: str) -> Curve | None:
        plan, mu = question.plan, upload_mu(question)
        if plan.noise_site is NoiseSite.SUM or plan.adjacency == "add-remove":
            return None
        count = participation_counts(question)[0]
        if count.is_known:
            return gaussian_curve(mu * math.sqrt(count.value))
        return drawn_gaussians_curve((mu, question.rounds), (0.0, 0), plan.rate)

"""FedCEO's personal models, which are made from the stack of uploads and not from the average."""

import math

import numpy as np

from fedceo.accounting import reasons
from fedceo.accounting.caps import epsilon_if_nobody_is_capped
from fedceo.accounting.gaussian import drawn_gaussians_epsilon, gaussian_epsilon
from fedceo.accounting.observers.averages import accountant_of
from fedceo.accounting.observers.base import VIEWS, Answer, View
from fedceo.accounting.plan import NoiseSite, Question
from fedceo.accounting.pld import personalised_epsilon
from fedceo.accounting.released import average_after_smoothing, multiplier, upload_mu, worst_average
from fedceo.accounting.renyi import Curve, drawn_curve, drawn_gaussians_curve, gaussian_curve, round_curve
from fedceo.accounting.rounds import Round


@VIEWS.register("personal models", "a personal model made from the stack of uploads, and averages of such models")
class PersonalModels(View):
    """Averages of personal models re-release single states, so outsiders and participants have the clients' row."""

    observers = ("outsider", "participant", "client")

    def supports(self, question: Question, observer: str) -> bool:
        return question.plan.protects_clients and question.plan.has_personal_models

    def answer(self, question: Question, observer: str) -> Answer:
        plan = question.plan
        if question.rounds == 0:
            return Answer(0.0, reasons.CLOSED_FORM, reasons.NOTHING_RELEASED)
        if plan.noise_site is NoiseSite.SUM:
            return Answer(None, reasons.NONE, reasons.BARE_UPLOADS)
        if plan.release == "stored":
            return Answer(None, reasons.NONE, reasons.STORED_UPLOADS)
        if plan.adjacency == "add-remove":
            return Answer(None, reasons.NONE, reasons.SMOOTHING_SHOWS_PRESENCE)
        found = _bound(question)
        seen = (
            "personal models come from the stack of uploads: nothing is amplified in the smoothing rounds, "
            f"{question.smoothings} of {question.rounds}, nor right after them; averages re-release single states, so "
            "outsiders have this row too"
        )
        return found._replace(assumption=reasons.joined(seen, found.assumption))

    def divergence(self, question: Question, observer: str) -> Curve | None:
        plan = question.plan
        if plan.noise_site is NoiseSite.SUM or plan.release == "stored" or plan.adjacency == "add-remove":
            return None
        if plan.everyone_is_in:
            return _known_curve(question, 1.0, multiplier(question, question.fewest_reports, own_uploads=1))
        average, after = worst_average(question, own_uploads=1), average_after_smoothing(question)
        known = _known_curve(question, plan.rate, min(s.multiplier for s in (*average.strata, *after.strata)))
        return known if question.cap_binds else np.minimum(known, _secret_curve(question, average, after))


def _bound(question: Question) -> Answer:
    """The epsilon, and what it rests on beside what everybody sees (D8)."""
    plan, uploaded = question.plan, upload_mu(question)
    if question.absence_tells:
        mu = uploaded * math.sqrt(question.most_participations)
        return Answer(gaussian_epsilon(mu, plan.delta), reasons.CLOSED_FORM, reasons.ABSENT)
    if plan.everyone_is_in:
        least_noise = multiplier(question, question.fewest_reports, own_uploads=1)
        return Answer(_with_known_memberships(question, 1.0, least_noise), reasons.CLOSED_FORM, "")
    average, after = worst_average(question, own_uploads=1), average_after_smoothing(question)
    rate = (question.most_reports or plan.cohort) / plan.clients
    known = _with_known_memberships(question, rate, min(s.multiplier for s in (*average.strata, *after.strata)))
    words = reasons.SIZE_SHOWS if plan.sampling == "poisson" else ""

    def secret_at(delta: float) -> float:
        return personalised_epsilon(average, after, rate, uploaded, question.rounds, question.smoothings, delta)

    secret = epsilon_if_nobody_is_capped(question, secret_at) if question.cap_binds else secret_at(plan.delta)
    if known < secret:
        words = reasons.joined(words, reasons.CAPPED if question.cap_binds else "")
        return Answer(known, reasons.KNOWN_MEMBERSHIPS, words, plan.sampling)
    accountant = accountant_of(((average, question.rounds),))
    return Answer(secret, f"{accountant}, mixed over smoothings", words, plan.sampling)


def _with_known_memberships(question: Question, rate: float, least_noise: float) -> float:
    plan = question.plan
    return drawn_gaussians_epsilon(*_kinds(question, least_noise), rate, plan.delta, plan.participation_cap)


def _known_curve(question: Question, rate: float, least_noise: float) -> Curve:
    return drawn_gaussians_curve(*_kinds(question, least_noise), rate, question.plan.participation_cap)


def _kinds(question: Question, least_noise: float) -> tuple[tuple[float, int], tuple[float, int]]:
    """Uploads seen in smoothing rounds, averages at the least noise in all others, memberships known."""
    others = question.rounds - question.smoothings
    return (upload_mu(question), question.smoothings), (question.plan.shift / least_noise, others)


def _secret_curve(question: Question, average: Round, after: Round) -> Curve:
    """The product of `pld.personalised_epsilon`."""
    rate, smoothings = question.plan.rate, question.smoothings
    seen, ordinary = gaussian_curve(upload_mu(question)), round_curve(average)
    if smoothings == question.rounds:
        return smoothings * drawn_curve(rate, seen)
    known = drawn_curve(rate, round_curve(after))
    block = drawn_curve(rate, seen + known, ordinary if average.hidden_size else known)
    return smoothings * block + max(question.rounds - 2 * smoothings, 0) * ordinary


@VIEWS.register("hidden sizes", "personal models if nobody could read the number of reports from the noise")
class HiddenSizes(View):
    """A comparison: what the client's row would be if Poisson cohorts of noise shares kept their sizes secret."""

    observers = ("client if sizes were hidden",)
    position = 5

    def supports(self, question: Question, observer: str) -> bool:
        plan = question.plan
        has_shares = plan.protects_clients and plan.noise_site is NoiseSite.UPLOADS
        return has_shares and plan.release == "personalised" and plan.sampling == "poisson"

    def answer(self, question: Question, observer: str) -> Answer:
        plan = question.plan
        if plan.cohort == 1 or question.rounds == 0:
            return Answer(None, reasons.NONE, reasons.NOBODY_TO_HIDE_BEHIND)
        z = plan.noise_multiplier * math.sqrt(1 - 1 / plan.cohort)
        average = Round.of(plan.rate, z, plan.adjacency, hidden_size=True)
        after = Round.of(1.0, z, plan.adjacency, hidden_size=True)
        epsilon = personalised_epsilon(
            average, after, plan.rate, upload_mu(question), question.rounds, question.smoothings, plan.delta
        )
        return Answer(epsilon, f"{reasons.POISSON}, mixed over smoothings", reasons.COMPARISON, "poisson")

"""The averages of all rounds, as an outsider sees them, or a participant who also knows its own upload."""

import math

import numpy as np

from fedceo.accounting import reasons
from fedceo.accounting.caps import cap_is_harmless, epsilon_if_nobody_is_capped
from fedceo.accounting.gaussian import gaussian_epsilon
from fedceo.accounting.observers.base import VIEWS, Answer, View
from fedceo.accounting.plan import NoiseSite, Question
from fedceo.accounting.pld import averages_epsilon, known_membership_epsilon
from fedceo.accounting.released import averages_seen
from fedceo.accounting.renyi import Curve, averages_curve, drawn_gaussians_curve, gaussian_curve
from fedceo.accounting.rounds import Averages, largest_rate


@VIEWS.register("averages", "the averages, not who was in them")
class ReleasedAverages(View):
    observers = ("outsider", "participant")

    def supports(self, question: Question, observer: str) -> bool:
        return question.plan.protects_clients and not question.plan.has_personal_models

    def answer(self, question: Question, observer: str) -> Answer:
        plan, own_uploads = question.plan, 1 if observer == "participant" else 0
        if question.rounds == 0:
            return Answer(0.0, reasons.CLOSED_FORM, reasons.NOTHING_RELEASED)
        if _noise_leaves_too(question):
            return Answer(None, reasons.NONE, reasons.NOISE_LEAVES_TOO)
        if plan.clients == own_uploads:
            return Answer(0.0, reasons.CLOSED_FORM, reasons.NO_OTHER_CLIENT)
        found = _bound(question, averages_seen(question, own_uploads))
        return found._replace(assumption=reasons.joined(*_sees(question, own_uploads), found.assumption))

    def divergence(self, question: Question, observer: str) -> Curve | None:
        plan, own_uploads = question.plan, 1 if observer == "participant" else 0
        if _noise_leaves_too(question):
            return None
        if plan.clients == own_uploads:
            return gaussian_curve(0.0)
        averages = averages_seen(question, own_uploads)
        if plan.everyone_is_in:
            return gaussian_curve(_mu_when_in(question, averages, plan.participation_cap or question.rounds))
        return _capped_curve(question, averages) if question.cap_binds else averages_curve(averages)


def _noise_leaves_too(question: Question) -> bool:
    """Whether a client that is gone shows by the noise that goes with it."""
    plan = question.plan
    number_of_shares_shows = plan.everyone_is_in or plan.sampling == "poisson"
    return plan.adjacency == "add-remove" and plan.noise_site is NoiseSite.UPLOADS and number_of_shares_shows


def accountant_of(averages: Averages) -> str:
    """The name of what `averages_epsilon` computes with."""
    return reasons.POISSON if all(average.hidden_size for average, _ in averages) else reasons.FIXED


def _sees(question: Question, own_uploads: int) -> list[str]:
    has_shares = question.plan.noise_site is NoiseSite.UPLOADS
    seen = reasons.SEES_AVERAGES
    if question.plan.groups is not None:
        seen = reasons.SEES_TURNS
    elif own_uploads:
        seen = reasons.KNOWS_OWN_SHARE if has_shares else reasons.KNOWS_OWN_UPDATE
    if has_shares and question.fewest_reports < question.plan.noise_shares:
        return [seen, reasons.fewest_reports(question.fewest_reports)]
    return [seen]


def _turns(question: Question) -> str:
    """Under cyclic sampling, in which rounds a client can be (D17)."""
    plan = question.plan
    return "" if plan.groups is None else reasons.turns_of_groups(question.turns, plan.groups, plan.everyone_is_in)


def _bound(question: Question, averages: Averages) -> Answer:
    """The bound that holds for how cohorts were drawn and who of them was there."""
    if question.absence_tells:
        return _some_were_absent(question, averages)
    if question.plan.everyone_is_in:
        # where a cap ends a client's part, the rounds with the least noise may be the ones before it
        epsilon = _epsilon_when_in(question, averages, question.plan.participation_cap or question.turns)
        return Answer(epsilon, reasons.CLOSED_FORM, _turns(question) or reasons.EVERYONE_IS_IN)
    return _capped(question, averages) if question.cap_binds else _amplified(question, averages)


def _some_were_absent(question: Question, averages: Averages) -> Answer:
    """Clients were absent for reasons of their own, so that the number of reports may tell who sent them (D7)."""
    if question.plan.adjacency == "add-remove":
        return Answer(None, reasons.NONE, f"{reasons.ABSENT}, {reasons.GONE_IS_NEVER_ABSENT}")
    most = question.most_participations
    rounds = f"{most} rounds at the least noise, {reasons.MOST_OF_ANY}"
    epsilon = _epsilon_when_in(question, averages, most)
    return Answer(epsilon, reasons.KNOWN_MEMBERSHIPS, f"{reasons.ABSENT}: {rounds}")


def _epsilon_when_in(question: Question, averages: Averages, rounds: int) -> float:
    """The epsilon of a client that is known to be in so many rounds, those with the least noise."""
    return gaussian_epsilon(_mu_when_in(question, averages, rounds), question.plan.delta)


def _mu_when_in(question: Question, averages: Averages, rounds: int) -> float:
    shift = question.plan.shift
    mus = [shift / min(s.multiplier for s in average.strata) for average, n in averages for _ in range(n)]
    return math.hypot(*sorted(mus, reverse=True)[:rounds])


def _amplified(question: Question, averages: Averages) -> Answer:
    """Secret memberships, of cohorts of a fixed size (D3, D12) or of Poisson ones (D4)."""
    plan, epsilon = question.plan, averages_epsilon(averages, question.plan.delta)
    if plan.sampling == "fixed":
        bound = reasons.UPPER_BOUND if plan.adjacency == "zero-out" else ""
        words = reasons.joined(reasons.KEEPS_ANOTHER_OUT, bound)
    else:
        words = reasons.SIZE_SHOWS if plan.noise_site is NoiseSite.UPLOADS else reasons.SIZES_HIDDEN
        words = reasons.joined(_turns(question), words)
    return Answer(epsilon, accountant_of(averages), words, plan.sampling)


def _capped(question: Question, averages: Averages) -> Answer:
    """The smaller of two bounds: memberships known and capped (D2), or secret where the cap does no harm (D5, D15)."""
    plan = question.plan
    secret = epsilon_if_nobody_is_capped(question, lambda delta: averages_epsilon(averages, delta))
    is_never_capped = plan.adjacency == "add-remove" and not averages[0][0].hidden_size
    known = math.inf if is_never_capped else known_membership_epsilon(averages, plan.delta, plan.participation_cap)
    if is_never_capped and math.isinf(secret):
        return Answer(None, reasons.NONE, f"{reasons.CAPPED}, {reasons.GONE_IS_NEVER_CAPPED}")
    if known < secret:
        return Answer(known, reasons.KNOWN_MEMBERSHIPS, reasons.CAPPED, plan.sampling)
    return _amplified(question, averages)._replace(epsilon=secret)


def _capped_curve(question: Question, averages: Averages) -> Curve | None:
    """Known and capped memberships (D2), or secret ones where a cap does no harm (D5)."""
    plan = question.plan
    if plan.adjacency == "add-remove" and not averages[0][0].hidden_size:
        return None
    strata = [stratum for average, _ in averages for stratum in average.strata]
    mu = plan.shift / min(stratum.multiplier for stratum in strata)
    known = drawn_gaussians_curve((mu, question.rounds), (0.0, 0), largest_rate(averages), plan.participation_cap)
    return np.minimum(known, averages_curve(averages)) if cap_is_harmless(question) else known

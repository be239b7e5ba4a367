"""The averages of a run as someone sees them, in the terms of `pld`: kinds of rounds, and how many of each.

The probability of being drawn enters, never who was drawn. Reports are taken to go missing whoever's they are, so that
given their number r every client is among them with probability r/N (D14); `Realised.random_absence` says where that
does not hold.

`own_uploads` is the number of uploads of a round that the observer knows because they are its own: none for an
outsider, one for a participant that is in.
"""

import math

from fedceo.accounting.plan import NoiseSite, Question
from fedceo.accounting.pld import negligible
from fedceo.accounting.rounds import Averages, Round, Stratum, drawn_round


def multiplier(question: Question, reports: int, own_uploads: int) -> float:
    """z of an average of so many reports; whoever knows its own share of noise in uploads takes it away (D6)."""
    plan = question.plan
    if plan.noise_site is NoiseSite.SUM:
        return plan.noise_multiplier
    # a lone report is not the participant's own: that would leave nobody to learn about
    unknown = max(reports - own_uploads, 1)
    return plan.noise_multiplier * math.sqrt(unknown / plan.noise_shares)


def upload_mu(question: Question) -> float:
    """How far one upload moves when its client's data changes, in standard deviations of its noise."""
    plan = question.plan
    return plan.shift * math.sqrt(plan.noise_shares) / plan.noise_multiplier


def averages_seen(question: Question, own_uploads: int) -> Averages:
    """The averages of all rounds; a participant's client of interest is one of the N - 1 others."""
    plan, realised = question.plan, question.realised
    if plan.sampling != "fixed" and plan.noise_site is NoiseSite.SUM:
        return ((Round.of(plan.rate, plan.noise_multiplier, plan.adjacency, hidden_size=True), question.turns),)
    if plan.noise_site is NoiseSite.SUM or realised.reports is None:
        return ((_average(question, own_uploads), question.rounds),)
    return tuple((_fixed_size(question, r, r, own_uploads), rounds) for r, rounds in realised.reports)


def worst_average(question: Question, own_uploads: int) -> Round:
    """An average that no round of the run exceeds: at every epsilon the worst number of reports."""
    if question.realised.reports is None:
        return _average(question, own_uploads)
    kinds = (_fixed_size(question, reports, reports, own_uploads) for reports, _ in question.realised.reports)
    return Round(tuple(worst for kind in kinds for worst in kind.alternatives), question.plan.adjacency)


def average_after_smoothing(question: Question) -> Round:
    """The average after a smoothing, for a client that is known to be in both rounds, as a participant sees it."""
    plan, least = question.plan, question.plan.min_reports or 1
    if plan.sampling == "fixed" or question.realised.reports is not None:
        return Round.of(1.0, multiplier(question, question.fewest_reports, own_uploads=1), plan.adjacency)

    def kind(others: int) -> tuple[float, float] | None:
        reports = others + 2  # the client's and the participant's own
        return (1.0, multiplier(question, reports, own_uploads=1)) if reports >= least else None

    unlikely = negligible(plan.delta, question.rounds)
    return drawn_round(plan.clients - 2, plan.report_rate, kind, plan.adjacency, unlikely)


def _average(question: Question, own_uploads: int) -> Round:
    """An average of as many reports as planned: those of a cohort of fixed size, or what Poisson sampling draws."""
    plan, least = question.plan, question.plan.min_reports or 1
    if plan.sampling == "fixed":
        return _fixed_size(question, plan.cohort, question.fewest_reports, own_uploads)
    others = plan.clients - own_uploads

    def kind(drawn: int) -> tuple[float, float] | None:
        reports = drawn + own_uploads
        if drawn == 0 or reports < least:  # with fewer nothing is released
            return None
        return drawn / others, multiplier(question, reports, own_uploads)

    return drawn_round(others, plan.report_rate, kind, plan.adjacency, negligible(plan.delta, question.rounds))


def _fixed_size(question: Question, drawn: int, reports: int, own_uploads: int) -> Round:
    """An average of reports of a cohort of fixed size; a participant that is in the cohort leaves fewer places."""
    clients, adjacency = question.plan.clients, question.plan.adjacency
    if own_uploads == 0:
        return Round.of(drawn / clients, multiplier(question, reports, own_uploads), adjacency)
    others = clients - own_uploads
    own_out = (Stratum(1.0, min(drawn / others, 1.0), multiplier(question, reports, own_uploads=0)),)
    own_in = (Stratum(1.0, (drawn - own_uploads) / others, multiplier(question, reports, own_uploads)),)
    return Round((own_out, own_in) if drawn > own_uploads else (own_out,), adjacency)

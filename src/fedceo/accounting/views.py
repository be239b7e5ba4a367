"""What an observer of averages sees of a run, in the terms of `sampled_pld`: kinds of rounds and how many of each.

The probability of being drawn enters, never who was drawn. Reports are taken to go missing whoever's they are, so that
given their number all clients are as likely to be among them; `Spec.random_absence` says where that does not hold.
"""

import math

from fedceo.accounting.plan import Spec
from fedceo.accounting.pld import Averages, Round, Stratum, drawn_round


def multiplier(spec: Spec, reports: int, curious: bool) -> float:
    """z of an average of so many reports; a curious participant takes its own share of distributed noise away."""
    if spec.mechanism == "central":
        return spec.noise_multiplier
    # a lone report is not the participant's own: that would leave nobody to learn about
    noisy = max(reports - curious, 1)
    return spec.noise_multiplier * math.sqrt(noisy / spec.share)


def averages_seen(spec: Spec, curious: bool) -> Averages:
    """The averages of all rounds; a curious participant picks its client among the N - 1 others."""
    if spec.sampling == "poisson" and spec.mechanism == "central":
        return ((Round.of(spec.rate, spec.noise_multiplier, spec.adjacency, hidden_size=True), spec.rounds),)
    if spec.mechanism == "central" or spec.reports is None:
        return ((average_round(spec, spec.fewest_reports, curious), spec.rounds),)
    return tuple((_fixed_round(spec, reports, curious), rounds) for reports, rounds in spec.reports)


def average_round(spec: Spec, reports: int, curious: bool) -> Round:
    """A round as planned: so many reports of a cohort of fixed size, or as many as Poisson sampling draws."""
    if spec.sampling == "fixed" or spec.reports is not None:
        return _fixed_round(spec, reports, curious)
    pool = spec.clients - curious
    least = spec.min_reports or 1  # with fewer nothing is released
    return drawn_round(
        pool,
        spec.report_rate,
        lambda m: (m / pool, multiplier(spec, m + curious, curious)) if m + curious >= least and m > 0 else None,
        spec.adjacency,
    )


def _fixed_round(spec: Spec, reports: int, curious: bool) -> Round:
    drawn = reports if spec.sampling == "poisson" else spec.cohort
    return _round_of(spec, drawn, reports, curious)


def worst_round(spec: Spec, curious: bool) -> Round:
    """One that no round of the run exceeds: the least noise of any, and the likeliest that a client is in."""
    if spec.reports is None:
        return average_round(spec, spec.fewest_reports, curious)
    return _round_of(spec, max(spec.cohort, spec.most_reports), spec.fewest_reports, curious)


def _round_of(spec: Spec, drawn: int, reports: int, curious: bool) -> Round:
    if not curious:
        return Round.of(drawn / spec.clients, multiplier(spec, reports, curious), spec.adjacency)
    pool = spec.clients - 1
    own_out = (Stratum(1.0, min(drawn / pool, 1.0), multiplier(spec, reports, curious=False)),)
    own_in = (Stratum(1.0, (drawn - 1) / pool, multiplier(spec, reports, curious)),)
    return Round((own_out, own_in) if drawn > 1 else (own_out,), spec.adjacency)


def round_after(spec: Spec) -> Round:
    """The average after a smoothing, for a client that is known to be in both, as seen by a participant."""
    if spec.sampling == "fixed" or spec.reports is not None:
        return Round.of(1.0, multiplier(spec, spec.fewest_reports, curious=True), spec.adjacency)
    least = spec.min_reports or 1
    return drawn_round(
        spec.clients - 2,
        spec.report_rate,
        lambda m: (1.0, multiplier(spec, m + 2, curious=True)) if m + 2 >= least else None,
        spec.adjacency,
    )


def upload_mu(spec: Spec) -> float:
    """How far one upload moves when its client's data changes, in standard deviations of its noise."""
    return spec.shift * math.sqrt(spec.share) / spec.noise_multiplier


def cap_binds(spec: Spec) -> bool:
    return spec.participation_cap is not None and spec.participation_cap < spec.rounds


def cap_is_harmless(spec: Spec) -> bool:
    """Whether a client that falls silent at its cap can only lower epsilon against averages.

    So it is where memberships are independent and hidden and the other world has nothing of the client: the likelihood
    ratio with the cap is then below the one without it in convex order, since both grow with every single average
    (Harris's inequality). With cohorts of a fixed size another client's place depends on it, and no such order holds.
    """
    return spec.sampling == "poisson" and spec.mechanism == "central" and spec.adjacency != "replace-one"

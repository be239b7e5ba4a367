"""The audit: does the pipeline of an experiment keep the promises that its accounting rests on?

    report = audit(simulation)
    report.refuted

First the mechanism is checked as a function (noise_check), which is sharp but sees one function. Then canaries go
through the real rounds, and several views are searched for them: each gives a lower bound of its mu,
which is held against the mu that is claimed. An audit can refute a claim, never prove it.

Bounds are printed at CONFIDENCE for all views of a report together, so that one report in twenty of a flawless
mechanism may show a bound just above its claim. That is no ground for an alarm: a claim counts as refuted where the
bound that is wrong with probability ALPHA (one in a million, for all views together) lies above it. Half the noise is
still found where a view is testable; a view that could not be expected to tell half the noise from all of it with so
many rounds is reported as not testable rather than passed.

Canaries of one round share its smoothing, so that scores of the returned models are independent only up to what the
smoothing mixes; all other scores are independent.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedceo.accounting.gaussian import gaussian_epsilon
from fedceo.accounting.plan import NoiseSite, Plan, Realised
from fedceo.accounting.rows import answer
from fedceo.audit.canaries import Samples, Scores, sure_bound
from fedceo.audit.noise_check import ALPHA, Finding
from fedceo.audit.records import RecordAudit
from fedceo.audit.uploads import Claim, UploadAudit
from fedceo.errors import UsageError

if TYPE_CHECKING:
    from fedceo.simulation.rounds import Simulation

CONFIDENCE = 0.95


@dataclass(frozen=True)
class View:
    """The evidence of the canaries in one view.

    Attributes:
        view: average | upload | upload - peer | upload - previous | returned, or step and its like for records.
        observer: who has it, as in the accounting.
        claim: mu as claimed, the distance of two worlds in standard deviations of the noise.
        bound: lower bound of mu, at CONFIDENCE for all views together.
        share: part of the clip that the coins decided on, below 1 where the claim is too large to be tested otherwise;
            the bound is that of the share divided by it, as it is for a Gaussian.
        scores: their number in the world that has fewer.
        verdict: passed | refuted | not testable.
        epsilon_round: epsilon of one round, or local step, at the bound.
        epsilon_run: the accountant's epsilon of the whole run at the bound, as if the noise were Gaussian.
        epsilon_claimed: the same at the claim; both None where it promises nothing.
    """

    view: str
    observer: str
    claim: float
    bound: float
    share: float
    scores: int
    verdict: str
    epsilon_round: float
    epsilon_run: float | None
    epsilon_claimed: float | None


@dataclass(frozen=True)
class Report:
    """An audit.

    Attributes:
        mechanism: the name of the audited mechanism.
        noise_multiplier: sigma.
        delta: that of the epsilons.
        rounds: how many each view was searched in.
        findings: what the check of the mechanism as a function found.
        views: what the canaries showed.
    """

    mechanism: str
    noise_multiplier: float
    delta: float
    rounds: int
    findings: tuple[Finding, ...]
    views: tuple[View, ...]

    @property
    def refuted(self) -> bool:
        """Whether any check failed or any claim was refuted."""
        return any(not f.passed for f in self.findings) or any(v.verdict == "refuted" for v in self.views)

    def as_dict(self) -> dict[str, Any]:
        return {"refuted": self.refuted} | asdict(self)


class _Audit(Protocol):
    """The interface that the audits of uploads and of records share."""

    claims: dict[str, Claim]
    default_rounds: int

    def check(self) -> list[Finding]: ...

    def play(self, share: float, rounds: int) -> Scores: ...


def audit(simulation: "Simulation", *, rounds: int | None = None, seed: int | None = None) -> Report:
    """Audit the privacy of a simulation, whose state stays as it is.

    Args:
        rounds: rounds played with canaries; left out: as many as half a minute to two minutes allow.
        seed: seed of the auditor's coins and directions, not of the experiment; left out: the system's entropy.
    """
    kind, mechanism = simulation.experiment.privacy.mechanism, simulation.mechanism
    if not mechanism.adds_noise:
        raise UsageError(f'privacy.mechanism: "{kind}" promises nothing that an audit could refute')
    if simulation.noise_multiplier == 0:
        raise UsageError("privacy.noise_multiplier: 0 promises nothing that an audit could refute")
    if simulation.experiment.method.refused_by_audit is not None:
        raise UsageError(simulation.experiment.method.refused_by_audit)
    if rounds is not None and rounds < 1:
        raise UsageError(f"rounds: {rounds}, expected at least 1")
    rng = np.random.default_rng(seed)
    numbers: Iterator[int] = itertools.count(1)
    run: _Audit = (RecordAudit if mechanism.trains_privately else UploadAudit)(simulation, numbers, rng)
    played = rounds or run.default_rounds
    findings = run.check()
    scores = {share: run.play(share, played) for share in sorted({claim.share for claim in run.claims.values()})}
    samples = {view: scores[claim.share].samples(view, rng) for view, claim in run.claims.items()}
    plan, realised = _question(simulation)
    views = [_judge(plan, realised, view, run.claims[view], samples[view], len(samples)) for view in samples]
    return Report(kind, simulation.noise_multiplier, plan.delta, played, tuple(findings), tuple(views))


def _judge(plan: Plan, realised: Realised, view: str, claim: Claim, samples: Samples, views: int) -> View:
    tested = claim.share * claim.mu
    bound = samples.mu_bound((1 - CONFIDENCE) / views) / claim.share
    if samples.mu_bound(ALPHA / views) > tested:
        verdict = "refuted"
    elif sure_bound(2 * tested, samples.smaller, ALPHA / views) > tested:
        verdict = "passed"
    else:
        verdict = "not testable"
    return View(
        view=view,
        observer=claim.observer,
        claim=claim.mu,
        bound=bound,
        share=claim.share,
        scores=samples.smaller,
        verdict=verdict,
        epsilon_round=gaussian_epsilon(bound, plan.delta),
        epsilon_run=_run_epsilon(plan, realised, claim.observer, bound),
        epsilon_claimed=_run_epsilon(plan, realised, claim.observer, claim.mu),
    )


def _question(simulation: "Simulation") -> tuple[Plan, Realised]:
    from fedceo.simulation.spending import foreseen, privacy_plan

    experiment, sizes = simulation.experiment, simulation.federation.sizes.tolist()
    return privacy_plan(experiment, sizes, simulation.noise_multiplier), foreseen(experiment, len(sizes))


def _run_epsilon(plan: Plan, realised: Realised, observer: str, mu: float) -> float | None:
    """The accountant's epsilon for the run if a round, or local step, shows the observer mu."""
    if mu == 0:
        return 0.0
    sigma = 1 / mu
    if plan.noise_site is NoiseSite.UPLOADS:
        uploads = observer != "outsider"
        sigma *= math.sqrt(plan.noise_shares if uploads else plan.noise_shares / plan.cohort)
    if observer == "outsider" and plan.release == "personalised":  # of what this view shows by itself
        plan = replace(plan, release="average")
    return answer(replace(plan, noise_multiplier=sigma), observer, realised).epsilon

"""The audit: does the pipeline of an experiment keep the promises that its accounting rests on?

    report = audit(simulation)
    report.refuted

First the mechanism is checked as a function (mechanism_check), which is sharp but sees one function. Then canaries go
through the real rounds, and several views are searched for them: what is certain about a view is a lower bound of its
mu, held against the mu that is claimed. An audit can refute a claim, never prove it.

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
from fedceo.accounting.plan import Spec
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
    """What the canaries showed in one view.

    Attributes:
        view: average | upload | upload - peer | upload - previous | returned, or step and its like for records.
        observer: who has it, as in the accounting.
        claim: mu as claimed, the distance of two worlds in standard deviations of the noise.
        bound: mu at least, at CONFIDENCE for all views together.
        share: part of the clip that the coins decided on, below 1 where claim is too large to be tested otherwise;
            the bound is that of the share divided by it, as it is for a Gaussian.
        scores: how many each world has at least.
        verdict: passed | refuted | not testable.
        epsilon_round: of one round, or local step, at the bound.
        epsilon_run: what the accountant says of the whole run at the bound, as if the noise were Gaussian.
        epsilon_claimed: what it says of the run at the claim; both None where it promises nothing.
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
        mechanism: distributed | central | record.
        noise_multiplier: sigma.
        delta: of the epsilons.
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
    """What the audits of uploads and of records have in common."""

    claims: dict[str, Claim]
    default_rounds: int

    def check(self) -> list[Finding]: ...

    def play(self, share: float, rounds: int) -> Scores: ...


def audit(simulation: "Simulation", *, rounds: int | None = None, seed: int | None = None) -> Report:
    """Audit the privacy of a simulation, whose state stays as it is.

    Args:
        rounds: rounds played with canaries; left out: as many as half a minute to two minutes allow.
        seed: of the auditor's coins and directions, not of the experiment; left out: the operating system's entropy.
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
    plan = _plan(simulation)
    views = [_judge(plan, view, run.claims[view], samples[view], len(samples)) for view in samples]
    return Report(kind, simulation.noise_multiplier, plan.delta, played, tuple(findings), tuple(views))


def _judge(plan: Spec, view: str, claim: Claim, samples: Samples, views: int) -> View:
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
        epsilon_run=_run_epsilon(plan, claim.observer, bound),
        epsilon_claimed=_run_epsilon(plan, claim.observer, claim.mu),
    )


def _plan(simulation: "Simulation") -> Spec:
    from fedceo.simulation.spending import planned_participations, privacy_spec

    experiment, sizes = simulation.experiment, simulation.federation.sizes.tolist()
    most = planned_participations(experiment, len(sizes))
    return privacy_spec(experiment, sizes, simulation.noise_multiplier, most)


def _run_epsilon(plan: Spec, observer: str, mu: float) -> float | None:
    """The accountant's epsilon for the run if a round, or local step, shows the observer mu."""
    if mu == 0:
        return 0.0
    sigma = 1 / mu
    if plan.mechanism == "distributed":
        uploads = observer != "outsider"
        sigma *= math.sqrt(plan.share if uploads else plan.share / plan.cohort)
    if observer == "outsider" and plan.release == "personalised":  # of what this view shows by itself
        plan = replace(plan, release="average")
    return answer(replace(plan, noise_multiplier=sigma), observer).epsilon

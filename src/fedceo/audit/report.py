"""The audit: does a run keep the promises that its accounting rests on?

    report = audit(simulation)
    report.refuted

The run itself is played (rehearsal.py): the real Simulation takes its rounds, and only local training is replaced by
updates that the auditor knows. What is left of uploads and of the released model without these updates must be the
noise that is claimed (survey.py, residuals.py; records.py where local training itself is private), what leaves the
server must follow from what it saw (server_step.py), draws must be independent with the stated rates (sampling.py), and
no two random streams alike (keys.py). Then canaries go through the rounds, and several views are searched for them:
what is certain about a view is a lower bound of its mu, held against the mu that is claimed. An audit can refute a
claim, never prove it; `not_covered` says what it did not look at, and `power` what it could have refuted.

Bounds are printed at CONFIDENCE for all views of a report together, so that one report in twenty of a flawless
mechanism may show a bound just above its claim. That is no ground for an alarm: a claim counts as refuted where the
bound that is wrong with probability ALPHA (one in a million, for all views together) lies above it. A view that could
not be expected to tell half the noise from all of it with so many rounds is reported as not testable, not as passed.

Canaries of one round share its smoothing, so that scores of the returned models are independent only up to what the
smoothing mixes; all other scores are independent.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedceo.accounting.gaussian import gaussian_epsilon
from fedceo.accounting.plan import NoiseSite, Plan, Realised
from fedceo.accounting.rows import answer
from fedceo.audit.canaries import Samples, sure_bound
from fedceo.audit.counts import count_findings
from fedceo.audit.findings import ALPHA, Finding
from fedceo.audit.keys import key_findings
from fedceo.audit.records import RecordAudit
from fedceo.audit.residuals import deficit_found
from fedceo.audit.sampling import batch_findings, cohort_findings
from fedceo.audit.survey import Survey
from fedceo.audit.uploads import Claim, UploadAudit
from fedceo.errors import UsageError

if TYPE_CHECKING:
    from fedceo.simulation.rounds import Simulation

CONFIDENCE = 0.95
NEVER_COVERED = (
    "the lowest bits of floating-point noise (Mironov 2012)",
    "training itself, losses and accuracies, which no noise covers",
    "other machines: a federation's nodes and Ray's workers",
)
"""What no audit looks at."""
STEPS_OF_MU = 40
"""Values of mu between the claim and ten times it that power is looked for in."""


@dataclass(frozen=True)
class View:
    """The evidence of the canaries in one view.

    Attributes:
        view: released | upload | upload - peer | upload - previous | mean - previous | returned | returned to others,
            or step and its like for records.
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
        epsilon_refutable: the least epsilon of the run that so many scores refute all but surely, None where it is
            beyond ten times the claimed mu.
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
    epsilon_refutable: float | None = None


@dataclass(frozen=True)
class Power:
    """What the checks of the noise could have refuted, all but surely.

    Attributes:
        noise_deficit: share of the standard deviation that, if missing everywhere, is found.
        epsilons: observer -> epsilon of the run with that much noise missing, None where nothing is promised.
    """

    noise_deficit: float
    epsilons: dict[str, float | None]


@dataclass(frozen=True)
class Report:
    """An audit.

    Attributes:
        mechanism: the name of the audited mechanism.
        noise_multiplier: sigma.
        delta: that of the epsilons.
        rounds: how many each view was searched in.
        findings: what the checks of the run found.
        views: what the canaries showed.
        power: what the checks could have refuted.
        not_covered: what was not looked at, by name.
    """

    mechanism: str
    noise_multiplier: float
    delta: float
    rounds: int
    findings: tuple[Finding, ...]
    views: tuple[View, ...]
    power: Power
    not_covered: tuple[str, ...]

    @property
    def refuted(self) -> bool:
        """Whether any check failed or any claim was refuted."""
        return any(not f.passed for f in self.findings) or any(v.verdict == "refuted" for v in self.views)

    def as_dict(self) -> dict[str, Any]:
        return {"refuted": self.refuted} | asdict(self)


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
    findings = [*cohort_findings(simulation, rng), *key_findings(simulation)]
    canaries: UploadAudit | RecordAudit
    looked: Survey | RecordAudit
    if mechanism.trains_privately:
        canaries = looked = RecordAudit(simulation, rng)
        findings = [*looked.findings(), *batch_findings(simulation, rng), *findings, *count_findings(simulation, rng)]
    else:
        canaries, looked = UploadAudit(simulation, rng), Survey(simulation, rng)
        findings = [*looked.findings(), *findings]
    played = rounds or canaries.default_rounds
    claims = canaries.claims
    scores = {share: canaries.play(share, played) for share in sorted({claim.share for claim in claims.values()})}
    samples = {view: scores[claim.share].samples(view, rng) for view, claim in claims.items()}
    plan, realised = _question(simulation)
    views = [_judge(plan, realised, view, claims[view], samples[view], len(samples)) for view in samples]
    return Report(
        mechanism=kind,
        noise_multiplier=simulation.noise_multiplier,
        delta=plan.delta,
        rounds=played,
        findings=tuple(findings),
        views=tuple(views),
        power=_power(plan, realised, deficit_found(looked.pooled), [view.observer for view in views]),
        not_covered=(*looked.not_covered, *NEVER_COVERED),
    )


def _power(plan: Plan, realised: Realised, deficit: float, observers: Sequence[str]) -> Power:
    weaker = replace(plan, noise_multiplier=plan.noise_multiplier * (1 - deficit))
    told = {observer: answer(weaker, observer, realised).epsilon for observer in dict.fromkeys(observers)}
    return Power(deficit, told if deficit < 1 else dict.fromkeys(told))


def _judge(plan: Plan, realised: Realised, view: str, claim: Claim, samples: Samples, views: int) -> View:
    tested = claim.share * claim.mu
    bound = samples.mu_bound((1 - CONFIDENCE) / views) / claim.share
    if samples.mu_bound(ALPHA / views) > tested:
        verdict = "refuted"
    elif sure_bound(2 * tested, samples.smaller, ALPHA / views) > tested:
        verdict = "passed"
    else:
        verdict = "not testable"
    factor = _refutable(tested, samples.smaller, ALPHA / views)
    refutable = None if factor is None else factor * claim.mu
    return View(
        view=view,
        observer=claim.observer,
        claim=claim.mu,
        bound=bound,
        share=claim.share,
        scores=samples.smaller,
        verdict=verdict,
        epsilon_round=gaussian_epsilon(bound, plan.delta),
        epsilon_run=_run_epsilon(plan, realised, claim, bound),
        epsilon_claimed=_run_epsilon(plan, realised, claim, claim.mu),
        epsilon_refutable=None if refutable is None else _run_epsilon(plan, realised, claim, refutable),
    )


def _refutable(tested: float, scores: int, alpha: float) -> float | None:
    """The least mu, in units of what is tested, whose bound from so many scores lies above it."""
    factors = np.geomspace(1.0, 10.0, STEPS_OF_MU)
    return next((float(f) for f in factors if sure_bound(float(f) * tested, scores, alpha) > tested), None)


def _question(simulation: "Simulation") -> tuple[Plan, Realised]:
    from fedceo.simulation.spending import foreseen, privacy_plan

    experiment, sizes = simulation.experiment, simulation.federation.sizes.tolist()
    return privacy_plan(experiment, sizes, simulation.noise_multiplier), foreseen(experiment, len(sizes))


def _run_epsilon(plan: Plan, realised: Realised, claim: Claim, mu: float) -> float | None:
    """The accountant's epsilon for the run if a round, or local step, shows the observer mu."""
    if mu == 0:
        return 0.0
    sigma, observer = 1 / mu, claim.observer
    if plan.noise_site is NoiseSite.UPLOADS:
        sigma *= math.sqrt(plan.noise_shares / claim.reports)
    if observer == "outsider" and plan.release == "personalised":  # of what this view shows by itself
        plan = replace(plan, release="average")
    return answer(replace(plan, noise_multiplier=sigma), observer, realised).epsilon

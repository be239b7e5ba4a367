"""The question of privacy accounting: what a run is planned to be, and what is known of how it went.

    plan = Plan(clients=100, cohort=10, rounds=300, noise_multiplier=1.0, delta=1e-5, mechanism="distributed")
    realised = Realised(participations=41)
    rows = account(plan, realised)

A `Plan` is what the experiment says. A `Realised` is what happened, field by field; a field left out went as planned.
`Question` is the two together, which every view of `fedceo.accounting.observers` is asked.
"""

import math
from dataclasses import dataclass
from enum import Enum, auto

from fedceo.errors import UsageError
from fedceo.experiment.method_table import Counts
from fedceo.experiment.registry import MECHANISMS

CHOICES = {
    "sampling": ("fixed", "poisson", "cyclic"),
    "adjacency": ("zero-out", "replace-one", "add-remove"),
    "release": ("average", "personalised", "stored"),
}
LEAST_NOISE, MOST_NOISE = 1e-4, 1e12
"""Noise multipliers that are accounted for: memory grows as one over sigma; far larger ones overflow floats."""
SMALLEST_DELTA = 1e-50
"""The smallest delta at which epsilons have been held against an independent computation."""


class NoiseSite(Enum):
    """Where noise enters, which is all that accounting needs to know of a mechanism."""

    NOWHERE = auto()
    UPLOADS = auto()
    """Each upload carries a share of the noise before it leaves its client."""
    SUM = auto()
    """The server adds noise to the sum of the updates."""
    STEPS = auto()
    """Each local step adds noise to its clipped gradients (DP-SGD)."""


def noise_site_of(mechanism: str) -> NoiseSite:
    """Where the noise of a registered mechanism enters."""
    if mechanism not in MECHANISMS:
        raise UsageError(f"mechanism: {mechanism!r}, expected one of {', '.join(MECHANISMS)}")
    site: NoiseSite = MECHANISMS[mechanism].noise_site
    return site


@dataclass(frozen=True)
class RecordSteps:
    """Local DP-SGD of one kind of client.

    Attributes:
        rate: Poisson rate of a record in a local step, 1/ceil(n/B) for n records in batches of B.
        steps: local steps of one participation.
    """

    rate: float
    steps: int

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise UsageError(f"record_rate: {self.rate}, expected above 0 and at most 1")
        if self.steps < 1:
            raise UsageError(f"record_steps: {self.steps}, expected at least 1")


@dataclass(frozen=True)
class Plan:
    """A run as its experiment says it shall be.

    Attributes:
        clients: N.
        cohort: K, the size of a round's cohort; the expected size under Poisson sampling.
        rounds: T.
        noise_multiplier: sigma. Noise in uploads: each carries N(0, sigma^2 C^2 / K), or over min_reports if given.
            Noise on the sum: N(0, sigma^2 C^2). Noise in local steps: as in DP-SGD.
        delta: below 1/N, and at least 1e-50.
        mechanism: the name of a mechanism, as in privacy.mechanism.
        sampling: fixed (K of N without replacement) | poisson (each client with probability K/N) | cyclic (groups of
            clients take turns, whole or Poisson within; noise on the sum, or none).
        adjacency: zero-out (a client's contribution becomes zero) | replace-one | add-remove.
        release: average (or anything computed from it) | personalised (FedCEO, made from a round's stack) | stored.
        interval: I, rounds between smoothings of a personalised release.
        min_reports: R, the number of reports that noise shares are sized for; a round with fewer releases nothing.
        dropout: probability with which a report goes missing, drawn in secret, anew in each round and alike for all.
        participation_cap: number of rounds after which a client sends nothing of its own any more, only noise.
        groups: g, the groups of cyclic sampling: in round t every client of group t mod g is in with probability
            K g/N, or all of it where that is 1 or more.
        record_steps: local DP-SGD of every kind of client, where noise enters there; the worst kind counts.
        counts: what each client counts of its records and releases once beside its local steps; None: nothing.
    """

    clients: int
    cohort: int
    rounds: int
    noise_multiplier: float
    delta: float
    mechanism: str
    sampling: str = "fixed"
    adjacency: str = "zero-out"
    release: str = "average"
    interval: int | None = None
    min_reports: int | None = None
    dropout: float = 0.0
    participation_cap: int | None = None
    groups: int | None = None
    record_steps: tuple[RecordSteps, ...] = ()
    counts: Counts | None = None

    def __post_init__(self) -> None:
        noise_site_of(self.mechanism)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise UsageError(f"{name}: {getattr(self, name)!r}, expected one of {', '.join(choices)}")
        for name in ("clients", "cohort", "interval", "min_reports", "participation_cap", "groups"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name}: {value}, expected at least 1")
        if self.rounds < 0:
            raise UsageError(f"rounds: {self.rounds}, expected zero or more")
        if self.cohort > self.clients:
            raise UsageError(f"cohort: {self.cohort}, more than the {self.clients} clients")
        self._check_groups()
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise UsageError(f"noise_multiplier: {self.noise_multiplier}, expected a finite number, zero or more")
        if self.noise_multiplier > 0 and not LEAST_NOISE <= self.noise_multiplier <= MOST_NOISE:
            raise UsageError(
                f"noise_multiplier: {self.noise_multiplier:g}, expected 0 or {LEAST_NOISE:g} to {MOST_NOISE:g}: beyond "
                "them nothing is tested"
            )
        if not 0 < self.delta < 1 / self.clients:
            raise UsageError(
                f"delta: {self.delta}, expected above 0 and below 1/N = {1 / self.clients:g}: "
                "publishing one client in N outright would pass at 1/N"
            )
        if self.delta < SMALLEST_DELTA:
            raise UsageError(f"delta: {self.delta:g}, expected at least {SMALLEST_DELTA:g}: below it nothing is tested")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout: {self.dropout}, expected zero or more and below 1")
        if self.min_reports is not None and self.min_reports > self.cohort:
            raise UsageError(f"min_reports: {self.min_reports}, more than the cohort, {self.cohort}")
        if self.release == "personalised" and self.interval is None:
            raise UsageError('interval: needed for release "personalised"')
        if self.counts is not None:
            self._check_counts(self.counts)
        if self.noise_site is NoiseSite.STEPS and not self.record_steps:
            raise UsageError(f'record_rate and record_steps: needed for mechanism "{self.mechanism}"')

    def _check_counts(self, counts: Counts) -> None:
        if not LEAST_NOISE <= counts.noise <= MOST_NOISE:
            raise UsageError(f"noise of {counts.of}: {counts.noise:g}, expected {LEAST_NOISE:g} to {MOST_NOISE:g}")
        if not 0 < counts.moved <= counts.replaced <= 2 * counts.moved:
            raise UsageError(
                f"{counts.of}: moved {counts.moved:g} and replaced {counts.replaced:g}, expected moved above 0, and "
                "replaced at least as much and at most twice that"
            )

    def _check_groups(self) -> None:
        if (self.sampling == "cyclic") != (self.groups is not None):
            raise UsageError(f'groups: {self.groups}, expected with sampling "cyclic", and with no other')
        if self.groups is None:
            return
        if self.noise_site in (NoiseSite.UPLOADS, NoiseSite.STEPS):
            raise UsageError(f'sampling: "cyclic", which mechanism "{self.mechanism}" has no proof for; use "central"')
        if self.cohort > -(-self.clients // self.groups):
            raise UsageError(
                f"cohort: {self.cohort}, more than the {-(-self.clients // self.groups)} clients of a group "
                f"({self.clients} clients in {self.groups} groups)"
            )

    @property
    def noise_site(self) -> NoiseSite:
        return noise_site_of(self.mechanism)

    @property
    def protects_clients(self) -> bool:
        """Whether there is noise that hides a whole client (user-level privacy)."""
        return self.noise_site in (NoiseSite.UPLOADS, NoiseSite.SUM) and self.noise_multiplier > 0

    @property
    def protects_records(self) -> bool:
        """Whether there is noise that hides a single record of a client, and no more than that."""
        return self.noise_site is NoiseSite.STEPS and self.noise_multiplier > 0

    @property
    def has_personal_models(self) -> bool:
        """Whether clients receive models made from single uploads, which makes a client more than a participant."""
        return self.release != "average"

    @property
    def everyone_is_in(self) -> bool:
        """Whether every client is in whenever it can be, so that nothing is amplified by sampling."""
        return self.rate == 1

    @property
    def noise_shares(self) -> int:
        """R, the number of uploads whose noise adds up to sigma C."""
        return self.min_reports or self.cohort

    @property
    def rate(self) -> float:
        """q, the probability that a client is in a round that it can be in: any, or one of its group's turns."""
        return min(self.cohort * (self.groups or 1) / self.clients, 1.0)

    @property
    def report_rate(self) -> float:
        """The probability that a client reports in a round: a Poisson cohort that loses some is a smaller one."""
        return self.rate * (1 - self.dropout)

    @property
    def shift(self) -> int:
        """How far the sum moves when the data of a client that is known to be in changes, in units of C."""
        return 2 if self.adjacency == "replace-one" else 1


@dataclass(frozen=True)
class Realised:
    """Facts of how a run went, from its ledger or foretold by the seed; a field left out went as planned.

    Attributes:
        rounds: how many rounds count.
        smoothings: how many of them smoothed; as planned: T/I.
        reports: (reports, rounds) pairs: an average of r uploads carries noise of sigma sqrt(r/R). As planned: K
            reports in every round, or R where it is given.
        random_absence: whether those whose reports are missing were drawn in secret, anew in each round and alike for
            all; otherwise a client may, given the number of reports, be far likelier to be in than K/N.
        participations: rounds that the most active client was in; left out, the draw of cohorts is accounted for.
        turns: under cyclic sampling, the rounds of the group that had most of them; as planned: T/g, rounded up.
    """

    rounds: int | None = None
    smoothings: int | None = None
    reports: tuple[tuple[int, int], ...] | None = None
    random_absence: bool = True
    participations: int | None = None
    turns: int | None = None

    def __post_init__(self) -> None:
        if self.rounds is not None and self.rounds < 0:
            raise UsageError(f"rounds: {self.rounds}, expected zero or more")
        if self.participations is not None and self.participations < 0:
            raise UsageError(f"participations: {self.participations}, expected zero or more")


AS_PLANNED = Realised()


@dataclass(frozen=True)
class Question:
    """A plan together with what is known of how it went: all that a view is asked about."""

    plan: Plan
    realised: Realised = AS_PLANNED

    def __post_init__(self) -> None:
        if self.realised.reports is None:
            return
        least = self.plan.min_reports or 1
        most = self.plan.cohort if self.plan.sampling == "fixed" else self.plan.clients
        for count, _ in self.realised.reports:
            if not least <= count <= most:
                raise UsageError(f"reports: {count}, expected {least} to {most}")
        if sum(rounds for _, rounds in self.realised.reports) != self.rounds:
            raise UsageError(f"reports: their rounds do not add up to the {self.rounds} rounds")

    @property
    def rounds(self) -> int:
        return self.plan.rounds if self.realised.rounds is None else self.realised.rounds

    @property
    def turns(self) -> int:
        """The rounds that one client can be in: all, or under cyclic sampling the turns of its group."""
        if self.realised.turns is not None:
            return self.realised.turns
        return -(-self.rounds // (self.plan.groups or 1))

    @property
    def smoothings(self) -> int:
        if self.realised.smoothings is not None:
            return self.realised.smoothings
        return self.rounds // self.plan.interval if self.plan.interval else 0

    @property
    def fewest_reports(self) -> int:
        """The least number of reports of any round that releases something; as planned, R."""
        return min((count for count, _ in self.realised.reports or ()), default=self.plan.noise_shares)

    @property
    def most_reports(self) -> int:
        """The largest number of reports of any round, where it is known and not as planned; otherwise 0."""
        return max((count for count, _ in self.realised.reports or ()), default=0)

    @property
    def absence_tells(self) -> bool:
        """Whether the number of reports may tell who sent them."""
        return self.realised.reports is not None and not self.realised.random_absence

    @property
    def most_participations(self) -> int:
        """The rounds that the most active client was in, or all rounds where that is not known."""
        return self.rounds if self.realised.participations is None else self.realised.participations

    @property
    def cap_binds(self) -> bool:
        """Whether the cap on participations is below the number of rounds that a client can be in."""
        cap = self.plan.participation_cap
        return cap is not None and cap < self.turns


def default_delta(protected: int) -> float:
    """min(1e-5, n^-1.1) for n clients, or for n records where a single record is protected."""
    return min(1e-5, protected**-1.1)

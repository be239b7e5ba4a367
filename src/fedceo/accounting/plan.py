"""The question and the answer of privacy accounting: what a run is, and what one observer learns from it."""

import math
from dataclasses import asdict, dataclass
from enum import Enum, auto
from typing import Any

from fedceo.errors import UsageError


class NoiseSite(Enum):
    """Where noise enters, which is all that accounting needs to know of a mechanism."""

    NOWHERE = auto()
    UPLOADS = auto()
    SUM = auto()
    STEPS = auto()


CHOICES = {
    "mechanism": ("none", "distributed", "central", "record"),
    "sampling": ("fixed", "poisson"),
    "adjacency": ("zero-out", "replace-one", "add-remove"),
    "release": ("average", "personalised", "stored"),
}


@dataclass(frozen=True)
class Spec:
    """Everything an accountant needs to know about a run.

    Attributes:
        clients: N.
        cohort: K, the size of a round's cohort; the expected size under Poisson sampling.
        rounds: T.
        noise_multiplier: sigma. Distributed: each upload carries N(0, sigma^2 C^2 / K), or over min_reports if given.
            Central: the sum carries N(0, sigma^2 C^2). Record: as in DP-SGD.
        delta: below 1/N.
        mechanism: none | distributed | central | record.
        sampling: fixed (K of N without replacement) | poisson (each client with probability K/N).
        adjacency: zero-out (a client's contribution becomes zero) | replace-one | add-remove.
        release: average (or anything computed from it) | personalised (FedCEO, restart own or slot) | stored.
        interval: I, rounds between smoothings of a personalised release.
        smoothings: how many of the rounds smoothed, if known; else T/I.
        min_reports: R, what the noise shares are sized for; rounds with fewer reports release nothing.
        reports: (reports, rounds) pairs that say what happened, where it is known and not as planned: an average of r
            uploads carries noise of sigma sqrt(r/R). Left out: K reports in every round, or R where it is given.
        dropout: probability with which a report goes missing, drawn in secret, each round anew and all alike.
        random_absence: whether those whose reports are missing are drawn in secret, each round anew and all alike, as
            `cohort.dropout` does it; else given the number of reports a client may be far likelier to be in than K/N.
        participations: rounds that the most active client was in, if known; else the draw of cohorts is accounted for.
        participation_cap: rounds after which a client sends nothing of its own any more, only noise.
        record_rate: record mechanism: the Poisson rate of a record in a local step, 1/ceil(n/B).
        record_steps: record mechanism: local steps of one participation.
        other_records: record mechanism: (rate, steps) of clients with other numbers of records; the worst one counts.
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
    smoothings: int | None = None
    min_reports: int | None = None
    reports: tuple[tuple[int, int], ...] | None = None
    dropout: float = 0.0
    random_absence: bool = True
    participations: int | None = None
    participation_cap: int | None = None
    record_rate: float | None = None
    record_steps: int | None = None
    other_records: tuple[tuple[float, int], ...] = ()

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise UsageError(f"{name}: {getattr(self, name)!r}, expected one of {', '.join(choices)}")
        for name in ("clients", "cohort", "interval", "min_reports", "participation_cap", "record_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name}: {value}, expected at least 1")
        if self.rounds < 0:
            raise UsageError(f"rounds: {self.rounds}, expected zero or more")
        if self.cohort > self.clients:
            raise UsageError(f"cohort: {self.cohort}, more than the {self.clients} clients")
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise UsageError(f"noise_multiplier: {self.noise_multiplier}, expected a finite number, zero or more")
        if not 0 < self.delta < 1 / self.clients:
            raise UsageError(
                f"delta: {self.delta}, expected above 0 and below 1/N = {1 / self.clients:g}: "
                "publishing one client in N outright would pass at 1/N"
            )
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout: {self.dropout}, expected zero or more and below 1")
        if self.min_reports is not None and self.min_reports > self.cohort:
            raise UsageError(f"min_reports: {self.min_reports}, more than the cohort, {self.cohort}")
        self._check_reports()
        if self.participations is not None and self.participations < 0:
            raise UsageError(f"participations: {self.participations}, expected zero or more")
        if self.release == "personalised" and self.interval is None:
            raise UsageError('interval: needed for release "personalised"')
        if self.mechanism == "record" and (self.record_rate is None or self.record_steps is None):
            raise UsageError('record_rate and record_steps: needed for mechanism "record"')
        if self.record_rate is not None and not 0 < self.record_rate <= 1:
            raise UsageError(f"record_rate: {self.record_rate}, expected above 0 and at most 1")

    def _check_reports(self) -> None:
        if self.reports is None:
            return
        least = self.min_reports or 1
        most = self.cohort if self.sampling == "fixed" else self.clients
        for count, _ in self.reports:
            if not least <= count <= most:
                raise UsageError(f"reports: {count}, expected {least} to {most}")
        if sum(rounds for _, rounds in self.reports) != self.rounds:
            raise UsageError(f"reports: their rounds do not add up to the {self.rounds} rounds")

    @property
    def share(self) -> int:
        """R, the number of uploads whose noise adds up to sigma C."""
        return self.min_reports or self.cohort

    @property
    def fewest_reports(self) -> int:
        """Of any round that releases something; under Poisson sampling as far as it is known."""
        return self.share if not self.reports else min(count for count, _ in self.reports)

    @property
    def absence_tells(self) -> bool:
        """Whether the number of reports may tell who sent them."""
        return self.reports is not None and not self.random_absence

    @property
    def most_reports(self) -> int:
        """Of any round, where what happened is known and not as planned; else 0."""
        return max((count for count, _ in self.reports or ()), default=0)

    @property
    def smoothed_rounds(self) -> int:
        if self.smoothings is not None:
            return self.smoothings
        return self.rounds // self.interval if self.interval else 0

    @property
    def rate(self) -> float:
        """q = K/N, the probability that a client is in a round."""
        return self.cohort / self.clients

    @property
    def report_rate(self) -> float:
        """The probability that a client reports in a round: a Poisson cohort that loses some is a smaller one."""
        return self.rate * (1 - self.dropout)

    @property
    def shift(self) -> int:
        """How far the sum moves when a client is known to be in, in units of C."""
        return 2 if self.adjacency == "replace-one" else 1


@dataclass(frozen=True)
class Row:
    """What one observer learns: epsilon at delta, or None where nothing can be promised.

    Attributes:
        observer: outsider | participant | server | client | paper.
        mechanism: the regime that the row belongs to.
        unit: what is protected: user (a whole client) or record.
        adjacency: which two data sets must look alike.
        sampling: the sampling that epsilon profits from: fixed | poisson | none.
        epsilon: None without a guarantee.
        delta: as asked for.
        accountant: what computed epsilon.
        assumption: in words, what must hold, or why there is no epsilon.
    """

    observer: str
    mechanism: str
    unit: str
    adjacency: str
    sampling: str
    epsilon: float | None
    delta: float
    accountant: str
    assumption: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def default_delta(protected: int) -> float:
    """min(1e-5, n^-1.1) for n clients, or records where one of these is protected."""
    return min(1e-5, protected**-1.1)

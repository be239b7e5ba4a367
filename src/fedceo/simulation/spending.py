"""Between an experiment and the accountant: what is asked before a run, and what a run's ledger says after it.

Nothing here imports torch unless data must be read, nor scipy before a number is asked for: commands start fast.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from fedceo.accounting.ledger import Ledger
from fedceo.accounting.plan import NoiseSite, Plan, Question, Realised, RecordSteps, default_delta, noise_site_of
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment

if TYPE_CHECKING:
    from fedceo.accounting.rows import Row

MOST_TRIED = 12
"""Numbers of bands among which one is chosen."""
REPEATABLE = "repeatable run: whoever has this folder can remove the noise"
"""What every row of a seeded run with noise says."""


def noise_site(experiment: Experiment) -> NoiseSite:
    """The place where noise enters under the experiment's mechanism."""
    return noise_site_of(experiment.privacy.mechanism)


def client_sizes(experiment: Experiment) -> list[int]:
    """Training records of each client; data is read only where the accountant's question depends on it."""
    clients = experiment.data.clients
    if noise_site(experiment) is not NoiseSite.STEPS and clients is not None:
        return [1] * clients
    from fedceo.data import build_federation

    return build_federation(experiment.data, experiment.seed).sizes.tolist()


def privacy_plan(experiment: Experiment, sizes: Sequence[int], noise_multiplier: float) -> Plan:
    """The plan of an experiment, which is all that the accountant knows of it.

    Args:
        sizes: training records of each client; they matter under record-level privacy only.
    """
    experiment = settled(experiment, len(sizes))
    privacy, method, train = experiment.privacy, experiment.method, experiment.train
    return Plan(
        clients=len(sizes),
        cohort=experiment.cohort.size,
        rounds=train.rounds,
        noise_multiplier=noise_multiplier,
        delta=_delta_of(experiment, sizes),
        mechanism=privacy.mechanism,
        sampling=experiment.cohort.sampling,
        adjacency=privacy.adjacency,
        release=experiment.release_kind,
        interval=method.release_interval,
        min_reports=privacy.min_reports,
        dropout=experiment.cohort.dropout,
        participation_cap=privacy.participation_cap,
        groups=experiment.cohort.groups,
        record_steps=_record_steps(experiment, sizes),
        counts=method.counts,
    )


def _delta_of(experiment: Experiment, sizes: Sequence[int]) -> float:
    """The delta as given, else min(1e-5, n^-1.1) for n clients, or n records where one of these is protected."""
    privacy, of_records = experiment.privacy, noise_site(experiment) is NoiseSite.STEPS
    protected = sum(sizes) if of_records else len(sizes)
    if of_records and privacy.delta is not None and privacy.delta * protected >= 1:
        raise UsageError(
            f"privacy.delta: {privacy.delta}, expected below 1/{protected}, one over the training records: "
            "publishing one of them outright would pass at that"
        )
    return privacy.delta or default_delta(protected)


def _record_steps(experiment: Experiment, sizes: Sequence[int]) -> tuple[RecordSteps, ...]:
    """Local DP-SGD of every kind of client: the rate of a record and the steps follow from its size."""
    if noise_site(experiment) is not NoiseSite.STEPS:
        return ()
    method, train = experiment.method, experiment.train
    kinds = sorted({-(-size // train.batch_size) for size in sizes})
    return tuple(
        RecordSteps(1 / method.record_batches(batches), method.record_steps(batches, train.local_epochs))
        for batches in kinds
    )


def settled(experiment: Experiment, clients: int) -> Experiment:
    """The same experiment with its groups and bands as numbers, where it has such and leaves them open."""
    cohort, privacy = experiment.cohort, experiment.privacy
    if cohort.sampling != "cyclic":
        return experiment
    most = max(clients // cohort.size, 1)
    if privacy.noise != "banded":
        bands, groups = None, cohort.groups or most
    elif isinstance(privacy.bands, int):
        bands, groups = privacy.bands, cohort.groups or privacy.bands
    elif cohort.groups is not None:  # whose epsilon is the same with fewer bands, which leave more noise
        bands = groups = cohort.groups
    else:
        return _with_least_noise(experiment, clients, min(most, experiment.train.rounds))
    if cohort.size > -(-clients // groups):
        raise UsageError(
            f"cohort.size: {cohort.size}, expected at most {-(-clients // groups)}, the clients of a group "
            f"({clients} clients in {groups} groups)"
        )
    return _with_turns(experiment, groups, bands)


def _with_turns(experiment: Experiment, groups: int, bands: int | None) -> Experiment:
    cohort = experiment.cohort.model_copy(update={"groups": groups})
    privacy = experiment.privacy.model_copy(update={"bands": bands})
    return experiment.model_copy(update={"cohort": cohort, "privacy": privacy})


def _with_least_noise(experiment: Experiment, clients: int, most: int) -> Experiment:
    """The experiment with as many bands, each with a group, as promise the least noise in the models of all rounds."""
    import numpy as np

    from fedceo.mechanisms.banded import released_spread
    from fedceo.mechanisms.base import noise_coefficients, workload

    response = workload(experiment)

    def noise(tried: Experiment) -> float:
        spread = released_spread(response, noise_coefficients(tried))
        return solve_noise(tried, [1] * clients) * float(np.linalg.norm(spread))

    counts = sorted({round(bands) for bands in np.geomspace(1, most, MOST_TRIED)})
    return min((_with_turns(experiment, bands, bands) for bands in counts), key=noise)


def foreseen(experiment: Experiment, clients: int) -> Realised:
    """The facts of a run that are known before it begins: the most participations, where the seed tells them."""
    return Realised(participations=planned_participations(experiment, clients))


def planned_participations(experiment: Experiment, clients: int) -> int | None:
    """The most rounds that a client will be in, which the seed tells; None where the draw of cohorts is a secret."""
    if experiment.privacy.randomness == "system":
        return None
    cohort, rounds = settled(experiment, clients).cohort, experiment.train.rounds
    most = _most_drawn(experiment.seed, rounds, clients, cohort.size, cohort.sampling, cohort.groups)
    return min(experiment.privacy.participation_cap or rounds, most)


@cache
def _most_drawn(seed: int, rounds: int, clients: int, size: int, sampling: str, groups: int | None) -> int:
    """The most rounds in which a client is drawn; to draw them all takes seconds where clients are a million."""
    from fedceo.training.schedule import Schedule

    drawn = (Schedule(seed).cohort(t, clients, size, sampling, groups) for t in range(1, rounds + 1))
    return max(Counter(client for members in drawn for client in members).values(), default=0)


def solve_noise(experiment: Experiment, sizes: Sequence[int]) -> float:
    """The noise multiplier as given, solved for target_epsilon, or 0 without a mechanism."""
    privacy = experiment.privacy
    if noise_site(experiment) is NoiseSite.NOWHERE:
        return 0.0
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    from fedceo.accounting.calibration import calibrate

    assert privacy.target_epsilon is not None
    asked = question_to_solve(experiment, sizes, privacy.observer)
    try:
        return calibrate(privacy.target_epsilon, privacy.observer, asked.plan, asked.realised)
    except UsageError as error:
        raise UsageError(f"privacy.{error}") from None


def question_to_solve(experiment: Experiment, sizes: Sequence[int], observer: str) -> Question:
    """The question that noise is solved for, so that the rows after the run keep to it; its own noise does not matter.

    Rows that depend on participations are solved for those of the most active client.
    """
    experiment = settled(experiment, len(sizes))
    most = planned_participations(experiment, len(sizes))
    if most is None and (observer == "server" or noise_site(experiment) is NoiseSite.STEPS):
        most = _hardly_exceeded(experiment, len(sizes))
    return Question(privacy_plan(experiment, sizes, 1.0), Realised(participations=most))


def _hardly_exceeded(experiment: Experiment, clients: int) -> int:
    """A number of rounds such that any client is in more with a probability of 1e-5 at most."""
    from fedceo.accounting.binomial import quantile

    rounds, rate = experiment.train.rounds, experiment.cohort.size / clients
    most = quantile(1 - 1e-5 / clients, rounds, rate)
    return min(experiment.privacy.participation_cap or rounds, most)


def with_solved_noise(experiment: Experiment, sizes: Sequence[int]) -> Experiment:
    """The same experiment with the noise multiplier in the place of a target epsilon, where it has one."""
    experiment = settled(experiment, len(sizes))
    privacy = experiment.privacy
    if privacy.target_epsilon is None:
        return experiment
    solved = {"noise_multiplier": solve_noise(experiment, sizes), "target_epsilon": None}
    return experiment.model_copy(update={"privacy": privacy.model_copy(update=solved)})


def planned_rows(experiment: Experiment, sizes: Sequence[int]) -> list["Row"]:
    """The rows of the run if everything goes as planned."""
    from fedceo.accounting.rows import account

    experiment = settled(experiment, len(sizes))
    plan = privacy_plan(experiment, sizes, solve_noise(experiment, sizes))
    check_observer_of(experiment, plan)
    rows = _with_caveat(account(plan, foreseen(experiment, len(sizes))), experiment)
    if not experiment.may_lose_noise or experiment.cohort.sampling == "poisson":
        return rows  # a Poisson cohort that loses some is a smaller one, which the plan has
    missing = f"if nobody drops out, and cohort.dropout is {experiment.cohort.dropout:g}"
    return [replace(row, assumption=f"{row.assumption}; {missing}") for row in rows]


def check_observer_of(experiment: Experiment, plan: Plan) -> None:
    """Refuse privacy.observer where such a run has no epsilon for it."""
    from fedceo.accounting.rows import check_observer

    if experiment.mechanism.adds_noise:
        try:
            check_observer(plan, experiment.privacy.observer)
        except UsageError as error:
            raise UsageError(f"privacy.{error}") from None


def spent_plan(experiment: Experiment, sizes: Sequence[int], noise_multiplier: float, ledger: Ledger) -> Plan:
    """The plan as far as the ledger has come: counts of the last round are no part of it before that."""
    plan = privacy_plan(experiment, sizes, noise_multiplier)
    if plan.counts is None or not plan.counts.in_last_round:
        return plan
    released = any(entry.round == plan.rounds and entry.released for entry in ledger.entries)
    return plan if released else replace(plan, counts=None)


def spent_rows(experiment: Experiment, sizes: Sequence[int], noise_multiplier: float, ledger: Ledger) -> list["Row"]:
    """The rows of the rounds that are in the ledger."""
    from fedceo.accounting.rows import account

    plan = spent_plan(experiment, sizes, noise_multiplier, ledger)
    return _with_caveat(account(plan, ledger.realised(plan)), experiment)


def _with_caveat(rows: list["Row"], experiment: Experiment) -> list["Row"]:
    """The rows with a word on noise that can be drawn again, from the seed and the rest of the run's folder."""
    if experiment.privacy.randomness == "system" or noise_site(experiment) is NoiseSite.NOWHERE:
        return rows
    return [replace(row, assumption=f"{row.assumption}; {REPEATABLE}") for row in rows]

"""Sampling: who is drawn, how often, and whether one draw tells of another; under record-level privacy the batches.

Amplification by sampling rests on draws that are independent with the stated rates. Cohorts are those that the
simulation draws, in its own run and in runs with other seeds; batches are those that its training context plans.
"""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import stats

from fedceo.accounting.ledger import Ledger
from fedceo.audit.findings import Finding, count_finding
from fedceo.audit.rehearsal import KnownTrainer, Rehearsal, another_seed

if TYPE_CHECKING:
    from fedceo.simulation.rounds import Simulation
    from fedceo.training.schedule import Schedule

DRAWS = 1000
"""Cohorts that are drawn."""
MOST_MEMBERS = 2e7
"""The same times the number of clients."""
BATCH_CLIENTS = 12
BATCH_ROUNDS = 20
ENOUGH_MEETINGS = 1000
"""Records expected in two given batches at once, after which no more batches are drawn."""

Counts = list[tuple[float, float, float]]


def cohort_findings(simulation: "Simulation", rng: np.random.Generator) -> list[Finding]:
    """Sizes, how often each client is in, meetings of any two rounds, and absences."""
    experiment, clients = simulation.experiment, simulation.federation.clients
    if experiment.cohort.sampling == "cyclic":
        return _turn_findings(simulation, rng)
    size, rate = experiment.cohort.size, experiment.cohort.size / clients
    drawn, reported, _ = _several_runs(simulation, rng)
    together = np.concatenate(drawn)
    sizes = together.sum(1)
    counts: Counts = [(float(n), float(len(together)), rate) for n in together.sum(0)]
    is_poisson = experiment.cohort.sampling == "poisson"
    if is_poisson:
        of_sizes: Counts = [(float(n), float(clients), rate) for n in sizes]
        of_sizes.append((float(sizes.sum()), float(together.size), rate))
        chance = stats.binom(clients, rate)
        # sizes that are too regular
        of_sizes.append((float((sizes == size).sum()), float(len(sizes)), float(chance.pmf(size))))
        of_sizes.append((float((sizes < size).sum()), float(len(sizes)), float(chance.cdf(size - 1))))
        size_finding = count_finding("cohort sizes", of_sizes, "sizes of Poisson cohorts")
    else:
        other = int((sizes != size).sum())
        size_finding = Finding("cohort sizes", other == 0, float(other), f"0 of {len(sizes)} cohorts without {size}")
    return [
        size_finding,
        count_finding("cohort members", counts, "how often each client is drawn"),
        count_finding("cohort overlaps", _meetings(drawn, size, is_poisson), "clients that two rounds share"),
        _absences(together, np.concatenate(reported), experiment.cohort.dropout),
    ]


def _turn_findings(simulation: "Simulation", rng: np.random.Generator) -> list[Finding]:
    """Groups that take turns: nobody is in out of turn or too soon again, and on its turn with the stated rate."""
    experiment, clients = simulation.experiment, simulation.federation.clients
    groups, size = experiment.cohort.groups, experiment.cohort.size
    assert groups is not None
    rate = min(size * groups / clients, 1.0)
    drawn, reported, schedules = _several_runs(simulation, rng)
    rounds = np.arange(1, len(drawn[0]) + 1)
    turns = [rounds[:, None] % groups == schedule.groups(clients, groups) for schedule in schedules]
    strangers = sum(int((members & ~turn).sum()) for members, turn in zip(drawn, turns, strict=True))
    soonest = min(_shortest_distance(members) for members in drawn)
    seen, could = sum(members.sum(0) for members in drawn), sum(turn.sum(0) for turn in turns)
    counts: Counts = [(float(n), float(of), rate) for n, of in zip(seen, could, strict=True)]
    meetings: Counts = []
    for lag in range(groups, len(rounds), groups):
        pairs = [(m[lag:] & m[:-lag], t[lag:]) for m, t in zip(drawn, turns, strict=True)]
        both, trials = (float(sum(pair[k].sum() for pair in pairs)) for k in range(2))
        meetings.append((both, trials, rate**2))
    return [
        Finding("cohort members", strangers == 0, float(strangers), "0 clients that are in out of turn"),
        Finding("cohort distances", soonest >= groups, float(soonest), f"at least {groups} rounds between two of one"),
        count_finding("cohort turns", counts, "how often each client is drawn on its turns"),
        count_finding("cohort overlaps", meetings, "clients that two turns share"),
        _absences(np.concatenate(drawn), np.concatenate(reported), experiment.cohort.dropout),
    ]


def _shortest_distance(members: npt.NDArray[np.bool_]) -> float:
    """The least number of rounds from one to another that a client is in; members: (rounds, N)."""
    client, round_ = np.nonzero(members.T)
    gaps = np.diff(round_)[np.diff(client) == 0]
    return float(gaps.min(initial=len(members)))


def _several_runs(
    simulation: "Simulation", rng: np.random.Generator
) -> tuple[list[npt.NDArray[np.bool_]], list[npt.NDArray[np.bool_]], list["Schedule"]]:
    """Of the run itself and of others with other seeds: (rounds, N) who was drawn, who reported, and the schedule."""
    rounds, clients = simulation.experiment.train.rounds, simulation.federation.clients
    draws = int(max(20, min(DRAWS, MOST_MEMBERS / clients)))
    seeds = [None, *(another_seed(rng) for _ in range(1, max(2, -(-draws // rounds))))]
    found = [_one_run(simulation, min(rounds, draws), seed) for seed in seeds]
    drawn, reported, schedules = zip(*found, strict=True)
    return list(drawn), list(reported), list(schedules)


def _one_run(
    simulation: "Simulation", rounds: int, seed: int | None
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], "Schedule"]:
    """(rounds, N) who was drawn and who reported, and the schedule."""
    played = Rehearsal(simulation, KnownTrainer(np.random.default_rng(0)), seed).simulation
    found = np.zeros((2, rounds, simulation.federation.clients), dtype=bool)
    for t in range(rounds):
        played.round, played.ledger = t, Ledger(repeatable=False)
        entry = played.draw()
        found[0, t, list(entry.cohort)] = True
        found[1, t, list(entry.reported)] = True
    return found[0], found[1], played.schedule


def _meetings(drawn: list[npt.NDArray[np.bool_]], size: int, is_poisson: bool) -> Counts:
    """Clients that two rounds share: at every distance within a run, and in the same round of two runs."""
    clients = drawn[0].shape[1]
    trials, rate = (clients, (size / clients) ** 2) if is_poisson else (size, size / clients)
    sums, pairs = Counter[int](), Counter[int]()
    for members in drawn:
        shared = members.astype(np.float32) @ members.T.astype(np.float32)
        for lag in range(1, len(members)):
            sums[lag] += int(np.diagonal(shared, lag).sum())
            pairs[lag] += len(members) - lag
    for one, other in zip(drawn[::2], drawn[1::2], strict=False):
        sums[0] += int((one & other).sum())
        pairs[0] += len(one)
    return [(float(sums[lag]), float(trials * pairs[lag]), rate) for lag in pairs]


def _absences(drawn: npt.NDArray[np.bool_], reported: npt.NDArray[np.bool_], dropout: float) -> Finding:
    if dropout == 0:
        missing = int((drawn & ~reported).sum())
        return Finding("absences", missing == 0, float(missing), f"0 of {int(drawn.sum())} reports")
    counts: Counts = [
        (float(n), float(of), 1 - dropout) for n, of in zip(reported.sum(0), drawn.sum(0), strict=True) if of > 0
    ]
    counts.append((float(reported.sum()), float(drawn.sum()), 1 - dropout))
    return count_finding("absences", counts, "how often each client reports")


def batch_findings(simulation: "Simulation", rng: np.random.Generator) -> list[Finding]:
    """Batches of DP-SGD: every record in every step with the accounted rate, whatever else is in, and no more steps."""
    experiment, context = simulation.experiment, simulation.context
    settings, train = experiment.method, experiment.train
    clients = rng.permutation(simulation.federation.clients)[:BATCH_CLIENTS]
    seen: dict[tuple[str, float], list[float]] = defaultdict(lambda: [0.0, 0.0])
    too_many = 0
    for t in range(1, min(train.rounds, BATCH_ROUNDS) + 1):
        for client in clients.tolist():
            mine = simulation.federation.train[client]
            batches = -(-len(mine) // train.batch_size)
            rate, steps = 1 / settings.record_batches(batches), 0
            before: npt.NDArray[np.bool_] | None = None
            for work in simulation.phases(t):
                indices, _ = context.plan(client, t, work)
                taken = _taken(indices.cpu().numpy(), mine.numpy())
                steps += len(taken)
                _count(seen, taken, before, rate)
                before = taken
            too_many = max(too_many, steps - settings.record_steps(batches, train.local_epochs))
        meetings = sum(trials * rate for (kind, rate), (_, trials) in seen.items() if kind == "meeting")
        if meetings > ENOUGH_MEETINGS and t > 1:
            break
    counts = [(n, trials, rate) for (_, rate), (n, trials) in seen.items()]
    return [
        count_finding("batches", counts, "records in a batch, and in two batches at once"),
        Finding("steps", too_many <= 0, float(max(too_many, 0)), "0 local steps more than are accounted for"),
    ]


def _taken(indices: npt.NDArray[np.int64], mine: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """(steps, n) which of a client's records each step takes."""
    place = {int(index): k for k, index in enumerate(mine)}
    taken = np.zeros((len(indices), len(mine)), dtype=bool)
    for step, row in enumerate(indices):
        taken[step, [place[int(index)] for index in row if index >= 0]] = True
    return taken


def _count(
    seen: dict[tuple[str, float], list[float]],
    taken: npt.NDArray[np.bool_],
    before: npt.NDArray[np.bool_] | None,
    rate: float,
) -> None:
    """Add a client's batches: records in them, in two steps after another, in two phases, and pairs of records."""

    def add(kind: str, found: npt.NDArray[np.bool_], at: float) -> None:
        seen[kind, at][0] += float(found.sum())
        seen[kind, at][1] += float(found.size)

    add("record", taken, rate)
    add("meeting", taken[0:-1:2] & taken[1::2], rate**2)
    pairs = taken[:, : taken.shape[1] // 2 * 2]
    add("pair", pairs[:, ::2] & pairs[:, 1::2], rate**2)
    if before is not None:
        steps = min(len(before), len(taken))
        add("phases", before[:steps] & taken[:steps], rate**2)

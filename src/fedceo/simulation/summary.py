"""What a finished run says: accuracies, each named, and the privacy rows."""

from collections import Counter
from dataclasses import replace
from typing import Any

from fedceo.config import Experiment, FedCEO
from fedceo.data import Federation
from fedceo.privacy.spec import Row, Spec
from fedceo.training.schedule import Schedule

REGIMES = {
    "none": "no privacy",
    "distributed": "user-level, distributed noise",
    "central": "user-level, central noise",
    "record": "record-level DP-SGD",
}


def summarise(history: list[dict[str, Any]]) -> dict[str, Any]:
    """last, best (chosen on the test set, so optimistic) and at_best_validation, each with its round."""
    measured = [r for r in history if "test_accuracy" in r]
    if not measured:
        return {"last": None, "best": None, "at_best_validation": None}
    best = max(measured, key=lambda r: r["test_accuracy"])
    chosen = [r for r in measured if r["validation_accuracy"] is not None]
    by_validation = max(chosen, key=lambda r: r["validation_accuracy"]) if chosen else None
    return {
        "last": measured[-1]["test_accuracy"],
        "best": best["test_accuracy"],
        "best_round": best["round"],
        "at_best_validation": by_validation["test_accuracy"] if by_validation else None,
        "at_best_validation_round": by_validation["round"] if by_validation else None,
    }


def default_delta(clients: int) -> float:
    """min(1e-5, N^-1.1)."""
    return min(1e-5, clients**-1.1)


def privacy_spec(
    experiment: Experiment, federation: Federation, noise_multiplier: float, participations: int | None = None
) -> Spec:
    """What the accountant needs to know of a run in which a client was in at most so many rounds.

    Under record privacy clients of different sizes sample at different rates; the spec is that of the worst one.
    """
    privacy, method, train = experiment.privacy, experiment.method, experiment.train
    release, interval = "average", None
    if isinstance(method, FedCEO) and method.restart != "mean":
        release = "stored" if method.restart == "stored" else "personalised"
        interval = method.interval
    share = _share_factor(experiment)
    specs = [
        Spec(
            clients=federation.clients,
            cohort=experiment.cohort.size,
            rounds=train.rounds,
            noise_multiplier=noise_multiplier * share,
            delta=privacy.delta or default_delta(federation.clients),
            mechanism=privacy.mechanism,
            sampling=experiment.cohort.sampling,
            adjacency=privacy.adjacency,
            release=release,
            interval=interval,
            reports=privacy.min_reports if share > 1 else None,
            participations=participations,
            record_rate=1 / batches if batches else None,
            record_steps=batches * train.local_epochs if batches else None,
        )
        for batches in _batches_per_epoch(experiment, federation)
    ]
    if len(specs) == 1:
        return specs[0]
    from fedceo.privacy.accounting import answer  # slow to import, and not always needed

    return max(specs, key=lambda spec: answer(spec, "server").epsilon or 0.0)


def _batches_per_epoch(experiment: Experiment, federation: Federation) -> list[int]:
    """ceil(n / B) of all clients, each number once; under record privacy alone it matters, else 0."""
    if experiment.privacy.mechanism != "record":
        return [0]
    return sorted({-(-len(places) // experiment.train.batch_size) for places in federation.train})


def _share_factor(experiment: Experiment) -> float:
    """sqrt(K / min_reports): how much more noise each upload carries than its share of a full cohort's."""
    if experiment.privacy.min_reports is None:
        return 1.0
    return (experiment.cohort.size / experiment.privacy.min_reports) ** 0.5


def planned_participations(experiment: Experiment, clients: int) -> int:
    """The most rounds that a client will be in: known from the seed, else what is exceeded with probability 1e-5."""
    cohort, rounds = experiment.cohort, experiment.train.rounds
    if experiment.privacy.randomness == "system":
        from scipy import stats

        return int(stats.binom.ppf(1 - 1e-5, rounds, cohort.size / clients))
    schedule = Schedule(experiment.seed)
    drawn = (schedule.cohort(t, clients, cohort.size, cohort.sampling) for t in range(1, rounds + 1))
    return max(Counter(client for members in drawn for client in members).values(), default=0)


def solve_noise(experiment: Experiment, federation: Federation) -> float:
    """sigma: as given, solved for target_epsilon, or 0 without a mechanism."""
    privacy = experiment.privacy
    if privacy.mechanism == "none":
        return 0.0
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    from fedceo.privacy.calibration import calibrate

    assert privacy.target_epsilon is not None
    most = planned_participations(experiment, federation.clients)
    sigma, spec = 1.0, privacy_spec(experiment, federation, 1.0, most)
    while True:  # which client is the worst may depend on the noise
        sigma = calibrate(privacy.target_epsilon, privacy.observer, spec) / _share_factor(experiment)
        worst = privacy_spec(experiment, federation, sigma, most)
        if (worst.record_rate, worst.record_steps) == (spec.record_rate, spec.record_steps):
            return sigma
        spec = worst


def privacy_rows(
    experiment: Experiment, federation: Federation, noise_multiplier: float, history: list[dict[str, Any]]
) -> list[Row]:
    """Who learns what, row by row; what a seed repeats protects from nobody who knows the seed."""
    from fedceo.privacy.accounting import account

    counts = Counter(client for record in history for client in record["cohort"])
    most = max(counts.values(), default=0)
    rows = account(privacy_spec(experiment, federation, noise_multiplier, most))
    if experiment.privacy.randomness == "system" or experiment.privacy.mechanism == "none":
        return rows
    return [replace(row, assumption=f"{row.assumption}; void for whoever knows the seed") for row in rows]

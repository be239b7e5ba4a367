"""Runs that were never taken: an experiment with the numbers of a result, for tests of tables and pages about them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedceo.experiment.file import parse_experiment
from fedceo.report.loading import Group, LoadedRun
from tests.support.small_runs import TABLE

FREE = {"mechanism": "none", "noise_multiplier": None}
"""The fields of [privacy] without any."""

RISE = {3: 0.8, 6: 0.98, 9: 0.99, 12: 1.0}
"""The share of the last accuracy that is reached in each measured round."""


def made_group(
    accuracies: Mapping[int, float],
    *,
    method: str = "fedavg",
    name: str | None = None,
    epsilon: float | None = 2.0,
    **sections: dict[str, Any],
) -> Group:
    """An experiment whose runs, by seed, have these last accuracies in percent; sections: fields to change."""
    table = TABLE | {"method": {"name": method}}
    table |= {section: table.get(section, {}) | fields for section, fields in sections.items()}
    runs = []
    for seed, accuracy in accuracies.items():
        experiment = parse_experiment(table | {"seed": seed})
        row = {"observer": "outsider", "unit": "user", "adjacency": "zero-out", "sampling": "fixed", "delta": 1e-5}
        row |= {"epsilon": epsilon, "accountant": "by hand", "assumption": "none"}
        history = [{"round": t, "test_accuracy": accuracy / 100 * RISE[t]} for t in RISE]
        result = {
            "method": method, "data": "digits", "model": "mlp", "regime": experiment.mechanism.regime, "seed": seed,
            "noise_multiplier": 0.5, "rounds": 12, "seconds": 6.0, "clients": 30, "ended_early": None,
            "accuracy": {"last": accuracy / 100, "best": accuracy / 100}, "privacy": [row], "engine": "loop",
            "device": "cpu", "machine": None, "versions": {"fedceo": "0"},
        }  # fmt: skip
        path = Path(name or method) / f"seed-{seed}"
        runs.append(LoadedRun(str(path), path, experiment, history, result, []))
    return Group(name or method, tuple(runs))


def close_methods() -> list[LoadedRun]:
    """Four methods within a point of each other, three seeds each, that rise and fall together."""
    levels = {"fedavg": 71.9, "fedceo": 71.5, "fedprox": 71.2, "dp-fedavg": 71.0}
    seeds = {0: 0.0, 1: 2.0, 2: -1.0}
    groups = [
        made_group({seed: level + more + 0.05 * seed * place for seed, more in seeds.items()}, method=method)
        for place, (method, level) in enumerate(levels.items())
    ]
    return [run for group in groups for run in group.runs]

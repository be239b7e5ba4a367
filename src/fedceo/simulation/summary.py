"""The summary of a run: accuracy, privacy, machine, each number named."""

import platform
import time
from pathlib import Path
from typing import Any, Protocol

import torch

from fedceo import __version__
from fedceo.accounting.ledger import Ledger
from fedceo.data import Federation
from fedceo.experiment.file import Experiment
from fedceo.experiment.plugins import is_own
from fedceo.models.plugins import fingerprint
from fedceo.simulation.spending import spent_rows
from fedceo.tasks import Metric, is_measured, main_metric, metric_of


def _of_clients(metric: Metric) -> tuple[str, ...]:
    """The names of the metrics of clients' own models."""
    name = metric.name
    return (
        f"local_{name}",
        f"local_{name}_worst",
        f"personal_{name}",
        f"distribution_{name}",
        f"distribution_{name}_worst",
    )


def summarise(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Accuracies, or another metric of the task: last, best and at_best_validation, each with its round.

    `best` is chosen on the test set, so optimistic. Where there is an average of the global models at the end, also its
    accuracy.

    Where the last model has just been smoothed, also that of the last round measured that did not smooth, or None: a
    smoothing can do much to a model, for better or worse.
    """
    measured = [r for r in history if is_measured(r)]
    if not measured:
        return {"last": None, "best": None, "at_best_validation": None}
    metric = metric_of(measured[0])
    test, validation = f"test_{metric.name}", f"validation_{metric.name}"
    best = max(measured, key=lambda r: metric.score(r[test]))
    chosen = [r for r in measured if r[validation] is not None]
    by_validation = max(chosen, key=lambda r: metric.score(r[validation])) if chosen else None
    unsmoothed: dict[str, Any] = {}
    if measured[-1].get("smoothed"):
        between = next((r for r in reversed(measured) if not r.get("smoothed")), dict[str, Any]())
        unsmoothed = {
            "last_unsmoothed": between.get(test), "last_unsmoothed_round": between.get("round"),
        }  # fmt: skip
    average = {"average": measured[-1][f"average_{test}"]} if f"average_{test}" in measured[-1] else {}
    return (
        unsmoothed
        | average
        | {f"{name}_last": measured[-1].get(name) for name in _of_clients(metric)}
        | {
            "last": measured[-1][test],
            "best": best[test],
            "best_round": best["round"],
            "at_best_validation": by_validation[test] if by_validation else None,
            "at_best_validation_round": by_validation["round"] if by_validation else None,
        }
    )


def _measured(experiment: Experiment, history: list[dict[str, Any]]) -> dict[str, Any]:
    """The summary under the name of its metric, which is said where it is not the accuracy."""
    metric = main_metric(experiment.task)
    return metric.about | {metric.name: summarise(history)}


def _elected(experiment: Experiment, history: list[dict[str, Any]]) -> dict[str, Any]:
    """What clients have elected in the last round, by field; None where nobody has voted."""
    field = experiment.method.elects
    return {} if field is None else {"elected": {f"method.{field}": history[-1].get(field) if history else None}}


def global_model_caveat(experiment: Experiment) -> str | None:
    """A warning about the model whose accuracy is given, where nobody has that model."""
    if not experiment.method.keeps_heads:
        return None
    words = "the shared layers under the mean of all clients' last layers, a model that nobody has"
    of_users = experiment.mechanism.is_user_level
    return words + (", and that no epsilon covers: last layers are never noised" if of_users else "")


def machine(device: torch.device) -> str:
    """The name of the GPU, or of the processor where the system tells it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


class Trained(Protocol):
    """A simulation, or the server of a federation, after its last round: the subject of a summary."""

    experiment: Experiment
    federation: Federation
    model_name: str
    noise_multiplier: float
    engine: str
    device: torch.device

    @property
    def round(self) -> int: ...
    @property
    def ledger(self) -> Ledger: ...


def own_model_of(simulation: Trained) -> dict[str, tuple[float, ...]]:
    """The fingerprint of an architecture of the user's own, which tells it from a later one of the same name."""
    name, data = simulation.experiment.model.name, simulation.federation.origin
    if not is_own(name) or simulation.model_name != name:
        return {}
    return {"own_model": fingerprint(name, data.shape, data.classes)}


def result_of(simulation: Trained, history: list[dict[str, Any]], seconds: float, ended: str | None) -> dict[str, Any]:
    """The summary, as result.json holds it."""
    experiment, data = simulation.experiment, simulation.federation
    rows = spent_rows(experiment, data.sizes.tolist(), simulation.noise_multiplier, simulation.ledger)
    return {
        "method": experiment.method.name,
        "data": data.name,
        "data_digest": data.digest,
        "test_digest": data.test_digest,
        "model": simulation.model_name,
        **own_model_of(simulation),
        **experiment.method.identity(),
        "regime": experiment.mechanism.regime,
        "noise_multiplier": simulation.noise_multiplier,
        "seed": experiment.seed,
        "rounds": simulation.round,
        "ended_early": ended,
        "discarded_rounds": sum("discarded" in r for r in history),
        "seconds": seconds,
        **_measured(experiment, history),
        **_elected(experiment, history),
        "global_model_caveat": global_model_caveat(experiment),
        "privacy": [row.as_dict() for row in rows],
        "ledger": len(simulation.ledger.entries),
        "nonfinite_updates": sum(r.get("nonfinite_updates", 0) for r in history),
        "clients": data.clients,
        "record_shape": list(data.origin.shape),
        "classes": data.classes,
        "engine": simulation.engine,
        "device": str(simulation.device),
        "machine": machine(simulation.device),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {"fedceo": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }

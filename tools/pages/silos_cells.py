"""Cells of experiments/silos/: what their methods are called, what places their names have, and what they measured."""

import statistics
from collections.abc import Mapping

from runs_found import Found, cells_in

NAMES = {
    "fedceo-damp-mean": "FedCEO, damp, mean of rounds", "fedceo-damp-voted": "FedCEO, damp, alpha voted",
    "fedceo-damp": "FedCEO, damp",
    "fedceo-spare-mean": "FedCEO, spare-mean", "fedceo": "FedCEO, threshold",
    "mr-mtl": "MR-MTL", "ditto": "Ditto", "fedavg-finetune": "FedAvg + fine-tuning", "ppsgd": "PPSGD",
    "centaur": "CENTAUR", "label-prior": "FedAvg + label prior", "local": "alone", "fedavg": "FedAvg, one model",
}  # fmt: skip
OURS, VOTED = "fedceo-damp-mean", "fedceo-damp-voted"
P_DIST, WORST, P_GLOB = "distribution_accuracy_last", "distribution_accuracy_worst_last", "personal_accuracy_last"
P_LOC = "local_accuracy_last"

Cells = Mapping[str, Found]


def axes(table: str) -> tuple[list[str], list[str]]:
    """The epsilons and partitions of a table, as they stand in names; "" is the partition of a table without any."""
    places = [name.removeprefix(f"{table}/").split("/") for name in cells_in(table)]
    epsilons = sorted({parts[0] for parts in places}, key=lambda each: float(each.rpartition("-")[2]))
    found = {"/".join(parts[2:]) for parts in places}
    order = ["iid", "dirichlet-1", "unequal-1", "dirichlet-0.3", "unequal-0.3", "dirichlet-0.1", "shards", ""]
    return epsilons, sorted(found, key=order.index)


def place(table: str, epsilon: str, method: str, partition: str) -> str:
    """The full name of a cell."""
    return "/".join(filter(None, [table, epsilon, method, partition]))


def mean_of(found: Found | None, which: str = P_DIST) -> float | None:
    """The mean over seeds in percent; None without a run."""
    values = found.percent(which) if found is not None else []
    return statistics.fmean(values) if values else None

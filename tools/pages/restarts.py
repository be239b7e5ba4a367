"""The part of docs/what-reproduces.md on what FedCEO's clients start from after a smoothing, from experiments/modes."""

import json
import statistics
from typing import Any

from paper_tables import ACCURACY, SIGMAS
from runs_found import ROOT, Found, difference, markdown, spread

MODES = {
    "udp-fedavg": "UDP-FedAvg",
    "own": "our reading of Algorithm 2: from its smoothed model if it was in the round before, else from their mean. "
    "The algorithm does not say what then; with K/N = 0.1 it is the case of nine clients in ten",
    "mean": "everybody from the mean of the smoothed models, which is FedAvg with a soft-thresholded mean",
    "slot": "the other reading of Algorithm 2: from the smoothed model of its place in the cohort",
    "stored": "the authors' program: from the client's own last stored model, ten rounds old on average, without the "
    "slip by which a client never seen resubmits another's weights",
    "stored-resubmit": "the authors' program with that slip",
    "stored-unsmoothed": "`stored` with a threshold of nothing: what old models do without smoothing",
}
RATES = ("0.1", "0.01")
LENET5 = "paper/table1/cifar10-lenet5/sigma-{}/{}"
BETWEEN = 295
"""The last round of the runs by restart that was measured and had no smoothing."""


def lead(cells: dict[str, Found], sigma: str, mode: str, rate: str) -> tuple[float, float]:
    """The lead over UDP-FedAvg between smoothings, of the MLP with iid clients."""
    return less(cells, sigma, mode, "udp-fedavg", rate)


def late_lead(cells: dict[str, Found], sigma: str, mode: str, rate: str) -> float:
    """The lead on average over the evaluated rounds after 200 that lie between smoothings."""
    ours, theirs = (mode_of(cells, sigma, each, rate) for each in (mode, "udp-fedavg"))
    interval = ours.done[0]["experiment"]["method"]["interval"]
    rounds = [t for t in ours.done[0]["curves"]["round"] if t > 200 and t % interval]
    return statistics.fmean(difference(ours.at(t), theirs.at(t))[0] for t in rounds)


def less(
    cells: dict[str, Found], sigma: str, mode: str, other: str, rate: str, when: str = "between"
) -> tuple[float, float]:
    """The difference between two restarts of the MLP, in the last round between smoothings or in the last of all."""
    ours, theirs = (mode_of(cells, sigma, each, rate) for each in (mode, other))
    if when == "last":
        return difference(ours.by_seed("last"), theirs.by_seed("last"))
    return difference(ours.at(BETWEEN), theirs.at(BETWEEN))


def restarts(cells: dict[str, Found]) -> str:
    """The MLP by what FedCEO's clients restart from, beside the paper and at both rates."""
    beside = [
        (
            sigma, rate, f"{ACCURACY[row_of(sigma, 'udp-fedavg')]:.2f}", _between(cells, sigma, "udp-fedavg", rate),
            f"{ACCURACY[row_of(sigma, 'fedceo')]:.2f}",
            *(_between(cells, sigma, mode, rate) for mode in MODES if mode != "udp-fedavg"),
        )
        for rate in RATES
        for sigma in SIGMAS
    ]  # fmt: skip
    whole = [
        (sigma, rate, *(last_and_best(mode_of(cells, sigma, mode, rate)) for mode in MODES))
        for rate in RATES
        for sigma in SIGMAS
    ]
    rows = {row["run"]: row for row in timed_runs()}
    slow, quick = (rows[f"UDP-FedAvg, lr {rate}, TF32, seed 0"] for rate in ("0.01", "0.1, 120 rounds"))
    timed = {
        ("2.0", "0.01"): f"{slow['last']:.2f} ({slow['best']:.2f})*",
        ("2.0", "0.1"): f"{quick['last']:.2f} ({quick['best']:.2f})*, 120 rounds",
    }
    lenet5 = []
    for rate in RATES:
        for sigma in SIGMAS:
            udp, fedceo = (LENET5.format(sigma, method) for method in ("udp-fedavg", "fedceo"))
            stored = mode_of(cells, sigma, "stored", rate, "lenet5")
            other = timed.get((sigma, rate), "-")
            plain = cells.get(f"modes/cifar10-lenet5/sigma-{sigma}/udp-fedavg,train.learning_rate={rate}", cells[udp])
            columns = (f"{ACCURACY[udp]:.2f}", _at_rate(plain, rate) or other, f"{ACCURACY[fedceo]:.2f}")
            lenet5.append((sigma, rate, *columns, _at_rate(stored, rate) or "-"))
    head = ("sigma_g", "rate", "paper: UDP-FedAvg", "ours", "paper: FedCEO", *list(MODES)[1:])
    return "\n".join(
        [
            "## Which restart is the paper's?",
            "",
            "`fedceo sweep experiments/modes/cifar10-mlp.toml --grid 'train.learning_rate=[0.1, 0.01]' --seeds 3`:",
            f"the MLP with iid clients in round {BETWEEN}, between smoothings:",
            "",
            markdown(head, beside),
            "The same, last (best); the last round has a smoothing, of which UDP-FedAvg knows nothing:",
            "",
            markdown(("sigma_g", "rate", *MODES), whole),
            "LeNet-5 with `stored`, last (best), beside UDP-FedAvg where it ran at that rate:",
            "",
            markdown(("sigma_g", "rate", "paper: UDP-FedAvg", "ours", "paper: FedCEO", "stored"), lenet5),
            "* of `benchmarks/gpu_cifar10.py`, with other records for validation. The other restarts of LeNet-5",
            "(`experiments/modes/cifar10-lenet5.toml`) have not been run.",
            "",
        ]
    )


def timed_runs() -> list[dict[str, Any]]:
    """The runs of benchmarks/gpu_cifar10.py."""
    rows: list[dict[str, Any]] = json.loads((ROOT / "benchmarks" / "results" / "cifar10-h200.json").read_text())["rows"]
    return rows


def row_of(sigma: str, method: str) -> str:
    return f"paper/heterogeneity/iid/sigma-{sigma}/{method}"


def mode_of(cells: dict[str, Found], sigma: str, mode: str, rate: str, of: str = "mlp") -> Found:
    """The runs of one restart at one rate, under the name that `fedceo sweep --grid` gives them."""
    return cells[f"modes/cifar10-{of}/sigma-{sigma}/{mode},train.learning_rate={rate}"]


def _between(cells: dict[str, Found], sigma: str, mode: str, rate: str) -> str:
    return spread(list(mode_of(cells, sigma, mode, rate).at(BETWEEN).values()))


def last_and_best(found: Found) -> str:
    return f"{spread(found.percent('last'))} ({spread(found.percent('best'))})"


def _at_rate(found: Found, rate: str) -> str:
    """The last (best) accuracy, or nothing for a cell that was not run at that rate."""
    if {run["experiment"]["train"]["learning_rate"] for run in found.done} != {float(rate)}:
        return ""
    if len(found.done) > 1:
        return last_and_best(found)
    return f"{found.percent('last')[0]:.2f} ({found.percent('best')[0]:.2f}), one seed"

"""The theory, measured: epsilon_u and epsilon_p of four methods as d, N, K and sigma vary, where the minimum is known.

    python tools/theory/measure.py

Writes results/theory.json, then docs/theory.md and its figure (page.py does that alone). About ten minutes on
two processor cores.
"""

import json
import os
import platform
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from problem import linear_model, make_problem, shared_model
from regression import ROUNDS as JAIN_ROUNDS
from regression import regression_excess
from representation import least_representation_loss, representation_loss

from fedceo import Experiment, __version__, parse_experiment
from fedceo.accounting.gaussian import gaussian_epsilon
from fedceo.accounting.rows import answer
from fedceo.simulation.preparing import prepare
from fedceo.simulation.spending import privacy_plan
from fedceo.simulation.summary import machine

RESULT = Path(__file__).resolve().parents[2] / "results" / "theory.json"
SEEDS = 5
DELTA = 1e-5
ROUNDS, RATE, INTERVAL = 16, 0.5, 4
TAU = 10.0
"""tau_0 of the theorem, whose threshold is tau_0 / K."""
WORKERS = 2

CEO = {"name": "fedceo", "interval": INTERVAL}
SCHEDULED = CEO | {"strength": 0.05, "ratio": 1.04}
METHODS: dict[str, dict[str, Any]] = {
    "udp-fedavg": {"name": "fedavg"},
    "fedceo-theorem": {"name": "fedceo", "interval": 1, "ratio": 1.0, "restart": "mean"},  # strength: K / (2 tau_0)
    "fedceo-scheduled-own": SCHEDULED | {"restart": "own"},
    "fedceo-scheduled-mean": SCHEDULED | {"restart": "mean"},
    "fedceo-noise-own": CEO | {"threshold": "noise", "restart": "own"},
    "fedceo-noise-mean": CEO | {"threshold": "noise", "restart": "mean"},
    "centaur": {
        "name": "centaur", "initialisation": "power", "power_rounds": 4, "head_epochs": 2, "head_learning_rate": 1.0,
    },
}  # fmt: skip
CLIPS = {"centaur": 0.4}
"""C is 1 for the others; each is about the norm of the method's updates."""


@dataclass(frozen=True)
class Cell:
    """One point of a sweep: a method, d, N, K and sigma."""

    method: str
    d: int
    N: int
    K: int
    sigma: float


SWEEPS: dict[str, list[Cell]] = {
    "d": [Cell("", d, 128, 128, 1.0) for d in (16, 32, 64, 128, 256, 512, 1024)],
    "N, K fixed": [Cell("", 64, n, 128, 2.0) for n in (256, 512, 1024, 2048)],
    "K, N fixed": [Cell("", 64, 1024, k, 2.0) for k in (64, 128, 256, 512)],
    "N = K": [Cell("", 64, n, n, 1.0) for n in (128, 256, 512)],
    "sigma": [Cell("", 64, 128, 128, sigma) for sigma in (0.25, 0.5, 1.0, 2.0)],
}
JAIN_SWEEPS: dict[str, list[Cell]] = {
    "d": [Cell("jain", d, 2048, 2048, 0.5) for d in (16, 32, 64, 128)],
    "N = K": [Cell("jain", 32, n, n, 0.5) for n in (512, 1024, 2048, 4096)],
    "sigma": [Cell("jain", 32, 2048, 2048, sigma) for sigma in (0.25, 0.5, 1.0)],
}


def cells_of(sweep: str, method: str) -> list[Cell]:
    """The points of a sweep for one method.

    Jain et al. take part all at once, and need many more clients than d; restart own is tried with everybody in every
    round and with few of many.
    """
    if method == "jain":
        return JAIN_SWEEPS.get(sweep, [])
    if method.endswith("-own") and sweep not in ("d", "N, K fixed"):
        return []
    return [replace(cell, method=method) for cell in SWEEPS[sweep]]


def floor_of(cell: Cell) -> Cell:
    """The cell without noise, where a threshold that follows the noise is zero and a restart is as good as another."""
    alike = {"fedceo-noise-own": "udp-fedavg", "fedceo-noise-mean": "udp-fedavg"}
    method = alike.get(cell.method, cell.method.replace("scheduled-own", "scheduled-mean"))
    return replace(cell, method=method, sigma=0.0)


def experiment_of(cell: Cell, seed: int) -> Experiment:
    """One full-batch gradient step a round, as in the theorem's proof."""
    method = METHODS[cell.method]
    if cell.method == "fedceo-theorem":
        method = method | {"strength": cell.K / (2 * TAU)}
    return parse_experiment(
        {
            "seed": seed,
            "data": {"name": "synthetic", "clients": cell.N},
            "cohort": {"size": cell.K},
            "train": {
                "rounds": ROUNDS, "local_epochs": 1, "batch_size": cell.d, "learning_rate": RATE, "device": "cpu",
            },
            "privacy": {
                "mechanism": "distributed",
                "clip": CLIPS.get(cell.method, 1.0),
                "noise_multiplier": cell.sigma,
                "delta": DELTA,
            },
            "method": method,
            "evaluation": {"every": ROUNDS},
        }
    )  # fmt: skip


def utility_losses(cells: list[Cell], seed: int) -> list[float]:
    """epsilon_u of cells that share d and N, so that their problem is made once."""
    torch.set_num_threads(1)
    if cells[0].method == "jain":
        return [regression_excess(cell.d, cell.N, cell.sigma, seed) for cell in cells]
    problem = make_problem(cells[0].d, cells[0].N, seed)
    least = least_representation_loss(problem) if any(cell.method == "centaur" for cell in cells) else None
    losses = []
    for cell in cells:
        model = shared_model(cell.d, seed) if cell.method == "centaur" else linear_model(cell.d)
        simulation = prepare(experiment_of(cell, seed), problem.federation, model)
        while simulation.round < ROUNDS:
            simulation.step()
        weights = simulation.state.weights["0.weight"]
        if cell.method == "centaur":
            assert least is not None
            losses.append(representation_loss(problem, weights) - least)
        else:
            losses.append(problem.excess(weights))
    return losses


def privacy_loss(cell: Cell) -> float | None:
    """epsilon_p: the outsider's, user level, zero-out; none without noise."""
    if cell.sigma == 0:
        return None
    if cell.method == "jain":
        return gaussian_epsilon((JAIN_ROUNDS + 1) ** 0.5 / cell.sigma, DELTA)
    return answer(privacy_plan(experiment_of(cell, 0), [cell.d] * cell.N, cell.sigma), "outsider").epsilon


def all_runs() -> Iterator[tuple[list[Cell], int]]:
    """Cells of one problem and a seed, the long ones first; the first seed without noise too, which shows the floor."""
    cells = {cell for sweep in SWEEPS for method in (*METHODS, "jain") for cell in cells_of(sweep, method)}
    together: dict[tuple[bool, int, int], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: tuple(asdict(cell).values())):
        together.setdefault((cell.method == "jain", cell.d, cell.N), []).append(cell)
    for group in sorted(together.values(), key=lambda group: -sum(cell.d**2 * cell.K for cell in group)):
        for seed in range(SEEDS):
            bare = dict.fromkeys(map(floor_of, group)) if seed == 0 else ()
            yield [*group, *bare], seed


def main() -> None:
    tasks, found = list(all_runs()), []
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        for losses in pool.map(utility_losses, *zip(*tasks, strict=True)):
            found.append(losses)
            print(f"{len(found)} of {len(tasks)}", flush=True)
    epsilons = {cell: privacy_loss(cell) for cell in {cell for cells, _ in tasks for cell in cells}}
    runs = [
        asdict(cell) | {"seed": seed, "epsilon_u": loss, "epsilon_p": epsilons[cell]}
        for (cells, seed), losses in zip(tasks, found, strict=True)
        for cell, loss in zip(cells, losses, strict=True)
    ]
    about = {
        "machine": machine(torch.device("cpu")),
        "date": time.strftime("%Y-%m-%d"),
        "processor_seconds": round(os.times().children_user),
        "versions": {"fedceo": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "seeds": SEEDS,
        "delta": DELTA,
        "tau_0": TAU,
        "experiments": {name: experiment_of(Cell(name, 64, 128, 128, 1.0), 0).model_dump() for name in METHODS},
    }
    lines = ",\n".join(json.dumps(run) for run in sorted(runs, key=lambda run: tuple(run.values())[:6]))
    head = json.dumps(about, indent=1)
    RESULT.write_text(f'{{"about": {head},\n"runs": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
    from page import write

    write()

"""How time and memory grow with the cohort K, the federation N and the model.

    python benchmarks/scale.py [--device cuda] [--quick] [--out FILE.json]

cohort      K = 10 to 1000, on a GPU to 10,000: time per client should not grow
LeNet-5     the same with a larger model, on a GPU alone; at K = 10,000 its uploads take 32 GiB
federation  K = 100 of N = 1,000 to 1,000,000 clients: neither memory nor time of a round should grow
model       K = 10, hidden units 16 to 4096: time per client should grow no faster than the parameters

MNIST-shaped records, 60 a client, one local epoch, batches of 20, plain SGD, no noise, no evaluation. Every point is a
process of its own. Memory is the peak of its resident set over that after importing the library; on a GPU also the peak
of what torch holds there: the uploads, and the clients in training, for which a quarter of the free memory is meant.
Times are medians over rounds after a first one. Beside FILE.json lies a picture, FILE.png.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from report import RESULTS, write
from torch import nn

from fedceo.data import Federation
from fedceo.data.assignment import Resampled
from fedceo.experiment.file import parse_experiment
from fedceo.models import build_model
from fedceo.models.mlp import MLP
from fedceo.simulation.rounds import Simulation

POOL, RECORDS, BATCH, ROUNDS = 60_000, 60, 20, 3
UNITS = 64
Point = tuple[int, int, int]
"""N, K and hidden units, none for LeNet-5."""
GOAL_MIB = 2048
"""The memory that a federation of a million clients may take."""


def make_federation(clients: int) -> Federation:
    """Clients that draw 60 records each from a pool of 60,000 when they are asked for them."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(256, (POOL, 1, 28, 28), generator=rng, dtype=torch.uint8)
    y = torch.randint(10, (POOL,), generator=rng)
    train = Resampled(torch.arange(POOL), clients, RECORDS, seed=0)
    nothing = Resampled(torch.arange(POOL), clients, 0, seed=0)
    none = torch.empty(0, dtype=torch.int64)
    return Federation("MNIST-shaped", x, y, train, none, nothing, x[:100], y[:100], 10, (0.1307,), (0.3081,))


def make_model(units: int) -> nn.Module:
    """The paper's MLP, a plain perceptron of another width, or LeNet-5 for no units."""
    if not units:
        return build_model("lenet5", (1, 28, 28), 10, 0)
    torch.manual_seed(0)
    if units == UNITS:
        return MLP((1, 28, 28), 10)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, units), nn.ReLU(), nn.Linear(units, 10))


def resident_mib(which: str) -> float:
    """VmRSS, the resident set now, or VmHWM, its peak. getrusage would tell the peak of the parent process too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(which))


def measure(clients: int, cohort: int, units: int, device: str) -> dict[str, Any]:
    """One point, in this process."""
    imported = resident_mib("VmRSS")
    times = [time.perf_counter()]
    federation = make_federation(clients)
    times.append(time.perf_counter())
    model = make_model(units)
    experiment = parse_experiment(
        {
            "data": {"name": "mnist-shaped", "clients": clients},
            "cohort": {"size": cohort},
            "train": {"rounds": ROUNDS + 2, "local_epochs": 1, "batch_size": BATCH, "device": device},
            "privacy": {"mechanism": "none"},
            "method": {"name": "fedavg"},
            "evaluation": {"every": ROUNDS + 2},
        }
    )
    simulation = Simulation(experiment, federation, model, "mlp" if units else "lenet5", 0.0)
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else 0
    times.append(time.perf_counter())
    for _ in range(ROUNDS + 1):
        simulation.step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter())
    federation_s, simulation_s, first_s, *steady = (b - a for a, b in pairwise(times))
    point = {
        "clients": clients,
        "cohort": cohort,
        "parameters": sum(p.numel() for p in model.parameters()),
        "engine": simulation.engine,
        "federation_s": federation_s,
        "simulation_s": simulation_s,
        "first_round_s": first_s,
        "round_s": statistics.median(steady),
        "client_ms": 1e3 * statistics.median(steady) / cohort,
        "imported_mib": imported,
        "peak_mib": resident_mib("VmHWM") - imported,
    }
    if device == "cuda":
        point["gpu_mib"] = torch.cuda.max_memory_allocated() / 2**20
        point["gpu_budget_mib"] = free / 4 / 2**20
    return point


def measure_apart(clients: int, cohort: int, units: int, device: str) -> dict[str, Any]:
    """One point, in a process of its own; on a failure, what Python said last."""
    command = [sys.executable, __file__, "--point", str(clients), str(cohort), str(units), "--device", device]
    paths = [str(Path(__file__).resolve().parent.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        return {"clients": clients, "cohort": cohort, "error": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout)


def show(sweep: str, point: dict[str, Any]) -> None:
    line = f"{sweep:<12}{point['clients']:>10,}{point['cohort']:>8,}"
    if "error" in point:
        print(f"{line}  {point['error']}", flush=True)
        return
    line += f"{point['parameters']:>12,}{point['client_ms']:>10.3f}{point['federation_s']:>12.2f}"
    line += f"{point['simulation_s']:>12.2f}{point['first_round_s']:>12.2f}{point['round_s']:>9.3f}"
    line += f"{point['peak_mib']:>10,.0f}"
    if "gpu_mib" in point:
        line += f"{point['gpu_mib']:>10,.0f}{point['gpu_budget_mib']:>10,.0f}"
    print(line, flush=True)


def sweeps_on(device: str) -> dict[str, list[Point]]:
    """Fewer points on a GPU, whose time is dear, and larger ones."""
    if device == "cpu":
        return {
            "cohort": [(1000, cohort, UNITS) for cohort in (10, 30, 100, 300, 1000)],
            "federation": [(clients, 100, UNITS) for clients in (10**3, 10**4, 10**5, 10**6)],
            "model": [(1000, 10, units) for units in (16, 64, 256, 1024, 4096)],
        }
    return {
        "cohort": [(10**4, cohort, UNITS) for cohort in (10, 100, 1000, 10**4)],
        "LeNet-5": [(10**4, cohort, 0) for cohort in (100, 1000, 10**4)],
        "federation": [(clients, 100, UNITS) for clients in (10**4, 10**6)],
        "model": [(10**4, 10, units) for units in (UNITS, 1024, 4096)],
    }


def draw(sweeps: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """One column a sweep: time per client above, memory below."""
    across = {
        "cohort": ("cohort", "cohort, K"),
        "LeNet-5": ("cohort", "cohort, K, LeNet-5"),
        "federation": ("clients", "federation, N (K = 100)"),
        "model": ("parameters", "parameters (K = 10)"),
    }
    wide = len(sweeps)
    figure, panels = plt.subplots(2, wide, figsize=(4 * wide, 6), sharex="col", layout="constrained")
    for (sweep, every), time_panel, memory_panel in zip(sweeps.items(), *panels, strict=True):
        key, label = across[sweep]
        points = [point for point in every if "error" not in point]
        x = [point[key] for point in points]
        time_panel.plot(x, [point["client_ms"] for point in points], "o-")
        memory_panel.plot(x, [point["peak_mib"] for point in points], "o-", color="C1", label="host")
        if "gpu_mib" in points[0]:
            memory_panel.plot(x, [point["gpu_mib"] for point in points], "o-", color="C2", label="GPU")
            memory_panel.legend(frameon=False)
        memory_panel.set(xscale="log", xlabel=label)
        for panel in (time_panel, memory_panel):
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(alpha=0.3)
        if sweep == "federation":
            memory_panel.axhline(GOAL_MIB, color="0.4", linestyle=":")
            memory_panel.annotate("2 GiB", (x[0], GOAL_MIB), color="0.4", va="bottom")
        if sweep == "model":
            slowest = points[-1]["client_ms"]
            time_panel.plot(x, [slowest * each / x[-1] for each in x], ":", color="0.4", label="as the parameters")
            time_panel.legend(frameon=False)
            time_panel.set_yscale("log")
        else:
            time_panel.set_ylim(0, 1.6 * max(point["client_ms"] for point in points))
        memory_panel.set_ylim(bottom=0)
    panels[0, 0].set_ylabel("ms per client-round")
    panels[1, 0].set_ylabel("peak memory, MiB")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="only the smaller half of every sweep")
    parser.add_argument("--out", type=Path, help="results/scale-DEVICE.json")
    parser.add_argument("--point", type=int, nargs=3, metavar=("N", "K", "UNITS"), help="one point, printed as JSON")
    options = parser.parse_args()
    if options.point:
        clients, cohort, units = options.point
        print(json.dumps(measure(clients, cohort, units, options.device)))
        return

    heads = f"{'ms per':>10}{'seconds:':>12}{'':>12}{'':>12}{'':>9}{'peak':>10}"
    print(f"{'':<12}{'':>10}{'':>8}{'':>12}{heads}{'GPU peak':>10}{'budget':>10}")
    heads = f"{'client':>10}{'federation':>12}{'simulation':>12}{'first round':>12}{'round':>9}{'MiB':>10}"
    print(f"{'sweep':<12}{'N':>10}{'K':>8}{'parameters':>12}{heads}{'MiB':>10}{'MiB':>10}")
    measure_once = cache(measure_apart)  # sweeps cross
    measured: dict[str, list[dict[str, Any]]] = {}
    for sweep, points in sweeps_on(options.device).items():
        measured[sweep] = []
        for point in points[: len(points) // 2 + 1] if options.quick else points:
            measured[sweep].append(measure_once(*point, options.device))
            show(sweep, measured[sweep][-1])
    out = options.out or RESULTS / f"scale-{options.device}.json"
    write({"device": options.device, "sweeps": measured}, out, options.device)
    draw(measured, out.with_suffix(".png"))


if __name__ == "__main__":
    main()

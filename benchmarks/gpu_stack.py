"""Time of a round of each of S runs that train as one program, on a GPU; on a CPU they train in turns.

    python benchmarks/gpu_stack.py [--rounds 10] [--repeats 5] [--out FILE]
    python benchmarks/gpu_stack.py --device cpu --epochs 1 --rounds 1

The settings of gpu_rounds.py with TF32 and FedAvg, every run with its own seed, dealing of the records, rate and noise.
A round is local training, mechanism and server step, without evaluation. Seconds are those of all S runs together,
divided by S and by the rounds: medians over repeats, after two rounds that are not counted (kernels are compiled and
steps recorded in those). "gain" is S = 1 over S = 8. On a CPU only the MLP is measured: LeNet-5 takes minutes there.
"""

import argparse
import json
import platform
import statistics
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_rounds import CIFAR, CLIENTS, EMNIST, Setting, make_data

from fedceo.data import Federation
from fedceo.experiment.file import parse_experiment
from fedceo.models import build_model
from fedceo.simulation.rounds import Simulation
from fedceo.simulation.runs import OnStart
from fedceo.simulation.stacked import run_stacked

SIZES = (1, 2, 4, 8)
ROWS: dict[str, tuple[Setting, str, float | None]] = {
    "MLP, record": (EMNIST, "record", 0.008),
    "MLP, distributed": (EMNIST, "distributed", None),
    "LeNet-5, record": (CIFAR, "record", None),
}
"""Name -> what, mechanism, seconds a round and run that are aimed at with S = 8."""


def make(setting: Setting, data: Federation, mechanism: str, seed: int, device: str, epochs: int) -> Simulation:
    model, shape, records, classes = setting
    noise = 1.0 + seed / 10
    train = {
        "rounds": 1000,
        "local_epochs": epochs,
        "batch_size": 64,
        "learning_rate": 0.01 / (seed + 1),
        "device": device,
        "tf32": True,
    }
    experiment = parse_experiment(
        {
            "seed": seed,
            "data": {"name": "random", "clients": CLIENTS},
            "cohort": {"size": 10},
            "train": train,
            "privacy": {"mechanism": mechanism, "noise_multiplier": noise},
            "method": {"name": "fedavg"},
            "evaluation": {"every": 10**6},
        }
    )
    order = torch.randperm(CLIENTS * records, generator=torch.Generator().manual_seed(seed))
    dealt = replace(data, train=list(order.view(CLIENTS, records)))
    return Simulation(experiment, dealt, build_model(model, shape, classes, seed), model, noise)


def take_rounds(simulation: Simulation, rounds: int, on_start: OnStart) -> None:
    on_start(simulation)
    for _ in range(rounds):
        simulation.step()


def seconds(simulations: list[Simulation], rounds: int) -> float:
    """Seconds a round and run; the simulations have their own trainers again afterwards, with what these recorded."""
    own = [(simulation.trainer, simulation.context) for simulation in simulations]
    begin = time.perf_counter()
    for _, outcome in run_stacked([partial(take_rounds, each, rounds) for each in simulations], len(simulations)):
        outcome()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    spent = time.perf_counter() - begin
    for simulation, (trainer, context) in zip(simulations, own, strict=True):
        simulation.trainer, simulation.context = trainer, context
    return spent / len(simulations) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="rounds of every run in a repeat")
    parser.add_argument("--repeats", type=int, default=5, help="times that these rounds are timed")
    parser.add_argument("--epochs", type=int, default=30, help="local epochs; the settings have 30")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, help="also write the numbers as JSON")
    options = parser.parse_args()

    machine = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{machine}, torch {torch.__version__}; seconds a round and run, {options.epochs} local epochs")
    print(f"{'':<20}{'aim':>8}" + "".join(f"{f'S = {size}':>9}" for size in SIZES) + f"{'gain':>8}")
    rows: list[dict[str, Any]] = []
    for name, (setting, mechanism, aim) in ROWS.items():
        if options.device == "cpu" and setting != EMNIST:
            continue
        aim = aim if options.device == "cuda" else None
        data = make_data(setting)
        simulations = [make(setting, data, mechanism, k, options.device, options.epochs) for k in range(SIZES[-1])]
        for size in SIZES:
            seconds(simulations[:size], 2)
        spent: dict[int, list[float]] = {size: [] for size in SIZES}
        for _ in range(options.repeats):  # in turns, so that what slows one slows the other
            for size in SIZES:
                spent[size].append(seconds(simulations[:size], options.rounds))
        found = {size: statistics.median(each) for size, each in spent.items()}
        rows.append({"row": name, "aim": aim, "engine": simulations[0].engine, "seconds": found})
        shown = "".join(f"{each:>9.4f}" for each in found.values())
        print(f"{name:<20}{aim or '':>8}{shown}{found[SIZES[0]] / found[SIZES[-1]]:>7.1f}x")
    if options.out:
        about = {
            "machine": machine,
            "cuda": torch.version.cuda,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"),
            "local_epochs": options.epochs,
            "rounds": rows,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()

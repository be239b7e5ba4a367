"""Time of a round on a GPU, with and without TF32, and of FedCEO against UDP-FedAvg from end to end.

    python benchmarks/gpu_rounds.py [--rounds 10] [--long 100] [--out FILE]

Random data in the shapes of the paper's settings: N = 100 clients, K = 10 a round, E = 30 local epochs, B = 64. A round
is local training, mechanism and server step, without evaluation; medians over rounds after two that are not counted
(kernels are compiled and steps recorded in those, "first" says how long they took). The runs end to end measure the
global model every 5 rounds on 10,000 records; the last of them measures clients' own models too, which FedCEO has and
UDP-FedAvg has not.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from fedceo.data import Federation
from fedceo.experiment.file import parse_experiment
from fedceo.models import build_model
from fedceo.simulation.rounds import Simulation

CLIENTS = 100
Setting = tuple[str, tuple[int, ...], int, int]
"""Model, shape of a record, records of a client, classes."""
CIFAR: Setting = ("lenet5", (3, 32, 32), 400, 10)
ALEXNET: Setting = ("alexnet", (3, 32, 32), 400, 10)
EMNIST: Setting = ("mlp", (1, 28, 28), 1000, 37)
SENT140: Setting = ("lstm", (25,), 400, 2)
ROWS = {
    "LeNet-5, record": (CIFAR, "record", 0.085),
    "LeNet-5, distributed": (CIFAR, "distributed", 0.07),
    "MLP, distributed": (EMNIST, "distributed", None),
    "MLP, record": (EMNIST, "record", None),
    "AlexNet, record": (ALEXNET, "record", 0.5),
    "LSTM, record": (SENT140, "record", 0.5),
}
"""Name -> what, mechanism, seconds a round that are aimed at."""


def make_data(setting: Setting) -> Federation:
    model, shape, records, classes = setting
    rng = torch.Generator().manual_seed(0)
    total = CLIENTS * records
    if model == "lstm":
        x = torch.randint(1, 10_001, (total + 10_000, *shape), generator=rng, dtype=torch.int32)
    else:
        x = torch.randint(256, (total + 10_000, *shape), generator=rng, dtype=torch.uint8)
    y = torch.randint(classes, (total + 10_000,), generator=rng)
    none = torch.empty(0, dtype=torch.int64)
    train = list(torch.arange(total).view(CLIENTS, records))
    return Federation(
        "random", x[:total], y[:total], train, none, [none] * CLIENTS, x[total:], y[total:], classes, (0.5,), (0.25,)
    )


def make(
    setting: Setting, data: Federation, mechanism: str, method: str, every: int, tf32: bool, personal: int = 0
) -> Simulation:
    model, shape, _, classes = setting
    train = {
        "rounds": 1000,
        "local_epochs": 30,
        "batch_size": 64,
        "learning_rate": 0.01,
        "device": "cuda",
        "tf32": tf32,
    }
    experiment = parse_experiment(
        {
            "data": {"name": "random", "clients": CLIENTS},
            "cohort": {"size": 10},
            "train": train,
            "privacy": {"mechanism": mechanism, "noise_multiplier": 1.0},
            "method": {"name": method},
            "evaluation": {"every": every, "personal_clients": personal},
        }
    )
    return Simulation(experiment, data, build_model(model, shape, classes, 0), model, 1.0)


def seconds(simulation: Simulation) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    simulation.step()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="rounds that are timed, each row")
    parser.add_argument("--long", type=int, default=100, help="rounds of each run end to end")
    parser.add_argument("--out", type=Path, help="also write the numbers as JSON")
    options = parser.parse_args()

    data = {setting: make_data(setting) for setting in (CIFAR, ALEXNET, EMNIST, SENT140)}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; seconds a round, median of {options.rounds}")
    print(f"{'':<24}{'aim':>8}{'TF32':>10}{'float32':>10}{'first':>10}")
    rows: list[dict[str, Any]] = []
    for name, (setting, mechanism, aim) in ROWS.items():
        row: dict[str, Any] = {"row": name, "aim": aim}
        for label in ("tf32", "float32"):
            simulation = make(setting, data[setting], mechanism, "fedavg", 10**6, label == "tf32")
            row[f"first_{label}"] = sum(seconds(simulation) for _ in range(2))
            row[label] = statistics.median(seconds(simulation) for _ in range(options.rounds))
        row["engine"] = simulation.engine
        rows.append(row)
        print(f"{name:<24}{aim or '':>8}{row['tf32']:>10.3f}{row['float32']:>10.3f}{row['first_tf32']:>10.1f}")

    contenders = {"UDP-FedAvg": ("fedavg", 0), "FedCEO": ("fedceo", 0), "FedCEO, own models too": ("fedceo", 20)}
    runs = {
        name: make(CIFAR, data[CIFAR], "distributed", method, 5, True, personal)
        for name, (method, personal) in contenders.items()
    }
    spent = dict.fromkeys(runs, 0.0)
    for simulation in runs.values():
        for _ in range(20):  # so that smoothings from models of their own are behind
            simulation.step()
    for _ in range(options.long // 10):  # in turns, so that what slows one slows the other
        for name, simulation in runs.items():
            spent[name] += sum(seconds(simulation) for _ in range(10))
    print(f"\nLeNet-5, distributed, TF32, evaluated every 5 rounds, {options.long} rounds")
    for name, total in spent.items():
        print(f"{name:<24}{total:>8.2f} s{total / spent['UDP-FedAvg'] - 1:>+9.1%}")
    if options.out:
        about = {
            "machine": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"),
            "rounds": rows,
            "end_to_end": {"rounds": options.long, "seconds": spent},
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()

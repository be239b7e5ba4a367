"""Time of a round of training: ours against the same work written as everybody writes it, and against our peers.

    python benchmarks/rounds.py [--peers] [--out FILE.json]

Always: an MLP on MNIST-shaped data, N = 100 clients of 600 records, K = 10 a round, one local epoch, batches of 64,
plain SGD, no noise, no evaluation, against a loop over clients with a DataLoader each. Both train the same clients from
the same model in one process, turn by turn, after one round that is not counted; medians over rounds.

With --peers also, each in a process and an environment of its own that is made on first use (see peers/): pfl's CNN
setting against that loop, pfl and Flower; LeNet-5 with DP-SGD inside local training against the loop with Opacus.
Everybody gets the same records, cohorts, batches and start weights, and must end with the same weights. Medians over
runs, start-up apart. Beside FILE.json lies a picture, FILE.png.

"peak" is the share of the cores' floating-point rate that a contender reaches: the operations of its products over its
time, against one large product of matrices on all cores, measured at the beginning of the same run. "system" is the
share of the system in the CPU time of the contender's process, start-up included.
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from peers.race import CNN, RECORD, race
from peers.work import build
from report import RESULTS, write
from roofline import operations, peak
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedceo.data import Federation
from fedceo.experiment.file import parse_experiment
from fedceo.models import build_model
from fedceo.simulation.rounds import Simulation

CLIENTS, RECORDS, COHORT, BATCH, RATE = 100, 600, 10, 64, 0.1
IDLE = 0.4
"""Seconds before every turn: threads of the one before wait for more work by burning a core for 0.2."""


def make_data() -> Federation:
    rng = torch.Generator().manual_seed(0)
    total = CLIENTS * RECORDS
    x = torch.randint(256, (total, 1, 28, 28), generator=rng, dtype=torch.uint8)
    y = torch.randint(10, (total,), generator=rng)
    none = torch.empty(0, dtype=torch.int64)
    train = list(torch.arange(total).view(CLIENTS, RECORDS))
    return Federation("MNIST-shaped", x, y, train, none, [none] * CLIENTS, x[:1000], y[:1000], 10, (0.1307,), (0.3081,))


class PlainMLP(nn.Module):
    """The same network with torch's own dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Linear(784, 64, bias=False)
        self.dropout = nn.Dropout(0.5)
        self.hidden = nn.Linear(64, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(self.dropout(self.input(x.flatten(1))).relu())


def plain_round(model: PlainMLP, datasets: list[TensorDataset], clients: list[int]) -> None:
    """One round of FedAvg, client by client."""
    start = {name: w.clone() for name, w in model.state_dict().items()}
    total = {name: torch.zeros_like(w) for name, w in start.items()}
    for client in clients:
        model.load_state_dict(start)
        model.train()
        optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
        for x, y in DataLoader(datasets[client], batch_size=BATCH, shuffle=True):
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimiser.step()
        for name, w in model.state_dict().items():
            total[name] += w / len(clients)
    model.load_state_dict(total)


def mlp_rows(rounds: int) -> list[dict[str, Any]]:
    data = make_data()
    simulations = {}
    for engine in ("batched", "loop"):
        experiment = parse_experiment(
            {
                "data": {"name": "mnist-shaped", "clients": CLIENTS},
                "cohort": {"size": COHORT},
                "train": {"rounds": 10**6, "local_epochs": 1, "batch_size": BATCH, "learning_rate": RATE,
                          "engine": engine, "device": "cpu"},
                "privacy": {"mechanism": "none"},
                "method": {"name": "fedavg"},
                "evaluation": {"every": 10**6},
            }
        )  # fmt: skip
        simulations[engine] = Simulation(experiment, data, build_model("mlp", (1, 28, 28), 10, 0), "mlp", 0.0)
    plain = PlainMLP()
    x = data.inputs(data.x)
    datasets = [TensorDataset(x[places], data.y[places]) for places in data.train]

    times: dict[str, list[float]] = {"batched": [], "loop": [], "plain": []}
    for turn in range(rounds + 1):
        clients = simulations["batched"].schedule.cohort(turn + 1, CLIENTS, COHORT, "fixed")
        for name in times:
            time.sleep(IDLE)
            begin = time.perf_counter()
            if name == "plain":
                plain_round(plain, datasets, clients)
            else:
                simulations[name].step()
            if turn > 0:
                times[name].append(time.perf_counter() - begin)
    labels = {"batched": "fedceo", "loop": "fedceo, engine = loop", "plain": "torch loop, DataLoader"}
    return [
        {
            "setting": "MLP",
            "contender": label,
            "processes": 1,
            "threads": torch.get_num_threads(),
            "client_ms": 1e3 * statistics.median(times[name]) / COHORT,
        }
        for name, label in labels.items()
    ]


def show(rows: list[dict[str, Any]]) -> None:
    """One table; "against ours" says how many times longer a contender takes than the first of its setting."""
    heads = f"{'steady, ms per':>15}{'':>9}{'':>7}{'start-up,':>11}{'':>9}{'weights':>10}{'':>8}"
    print(f"\n{'':<18}{'':<24}{'processes':>10}{heads}")
    heads = f"{'client-round':>15}{'vs ours':>9}{'peak':>7}{'s':>11}{'vs ours':>9}{'differ by':>10}{'system':>8}"
    print(f"{'setting':<18}{'contender':<24}{'x threads':>10}{heads}")
    ours: dict[str, Any] = {}
    for row in rows:
        if row["setting"] != ours.get("setting"):
            ours = row
        where = f"{row['processes']}x{row['threads']}"
        line = f"{row['setting']:<18}{row['contender']:<24}{where:>10}{row['client_ms']:>15.2f}"
        line += f"{row['client_ms'] / ours['client_ms']:>8.2f}x{row['peak']:>7.0%}"
        if "startup_s" in row:
            line += f"{row['startup_s']:>11.2f}{row['startup_s'] / ours['startup_s']:>8.1f}x{row['difference']:>10.0e}"
            line += f"{row['system']:>8.1%}"
        print(line)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Bars, one row of panels a setting: steady time on the left, start-up on the right."""
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    most = [sum(row["setting"] == setting for row in rows) for setting in settings]
    figure, axes = plt.subplots(
        len(settings), 2, figsize=(10, 0.45 * sum(most) + 0.8 * len(settings)), squeeze=False,
        gridspec_kw={"height_ratios": most}, layout="constrained",
    )  # fmt: skip
    for setting, (steady, startup) in zip(settings, axes, strict=True):
        mine = [row for row in rows if row["setting"] == setting]
        for panel, key, title in ((steady, "client_ms", "ms per client-round"), (startup, "startup_s", "start-up, s")):
            if key not in mine[0]:
                panel.set_axis_off()
                continue
            names = [f"{row['contender']} ({row['processes']}x{row['threads']})" for row in mine]
            bars = panel.barh(names, [row[key] for row in mine], color=["C0", *["0.7"] * (len(mine) - 1)])
            panel.bar_label(bars, [f"{row[key]:,.{0 if row[key] >= 100 else 2}f}" for row in mine], padding=3)
            panel.margins(x=0.15)
            panel.invert_yaxis()
            panel.set_title(f"{setting}: {title}", fontsize=10)
            panel.spines[["top", "right"]].set_visible(False)
        startup.set_yticklabels([])
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="of the MLP")
    parser.add_argument("--peers", action="store_true", help="also pfl, Flower and Opacus")
    parser.add_argument("--runs", type=int, default=3, help="of every peer")
    parser.add_argument("--quick", action="store_true", help="few clients, one run: to see that everything runs")
    parser.add_argument("--out", type=Path, default=RESULTS / "rounds-cpu.json")
    options = parser.parse_args()

    cores, limit = torch.get_num_threads(), peak()
    print(f"{cores} cores: {limit / 1e6:.0f} GFLOP/s in one product of large float32 matrices")
    rows = mlp_rows(options.rounds)
    client_operations = {"MLP": operations(PlainMLP(), torch.zeros(RECORDS, 1, 28, 28))}
    if options.peers:
        for setting in (CNN, RECORD):
            if options.quick:
                setting = replace(setting, cohort=4, rounds=2)
            rows += race(setting, cores, 1 if options.quick else options.runs)
            client_operations[setting.name] = operations(
                build(setting.model), torch.zeros(setting.records, *setting.shape)
            )
    for row in rows:
        row["peak"] = (
            client_operations[row["setting"]] / row["client_ms"] / (limit * row["processes"] * row["threads"] / cores)
        )
    show(rows)
    write(
        {"peak_gflops": limit / 1e6, "client_gflop": {k: n / 1e9 for k, n in client_operations.items()}, "rows": rows},
        options.out,
    )
    draw(rows, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()

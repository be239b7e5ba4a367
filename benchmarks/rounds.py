"""Time of a round against the same work written as everybody writes it: a loop over clients, a DataLoader each.

    python benchmarks/rounds.py [--rounds 20] [--out FILE]

MLP on MNIST-shaped data: N = 100 clients of 600 records, K = 10 a round, one local epoch, batches of 64, plain SGD, no
noise, no evaluation. Both contenders train the same clients from the same model in one run, turn by turn, after one
round that is not counted; medians over rounds.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedceo.config import parse_experiment
from fedceo.data import Federation
from fedceo.models import build_model
from fedceo.simulation.rounds import Simulation

CLIENTS, RECORDS, COHORT, BATCH, RATE = 100, 600, 10, 64, 0.1


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, help="also write the numbers as JSON")
    options = parser.parse_args()

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
    for turn in range(options.rounds + 1):
        clients = simulations["batched"].schedule.cohort(turn + 1, CLIENTS, COHORT, "fixed")
        for name in times:
            begin = time.perf_counter()
            if name == "plain":
                plain_round(plain, datasets, clients)
            else:
                simulations[name].step()
            if turn > 0:
                times[name].append(time.perf_counter() - begin)
    medians = {name: statistics.median(each) for name, each in times.items()}
    print(f"one round, median of {options.rounds}, cpu, {torch.get_num_threads()} threads, torch {torch.__version__}")
    labels = {"plain": "torch loop, DataLoader", "loop": "fedceo, loop", "batched": "fedceo, batched (auto)"}
    for name, label in labels.items():
        print(f"{label:<26}{1e3 * medians[name]:>10.1f} ms{medians['plain'] / medians[name]:>8.1f}x")
    if options.out:
        about = {"machine": platform.machine(), "threads": torch.get_num_threads(), "torch": torch.__version__}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(
            json.dumps(about | {"date": time.strftime("%Y-%m-%d"), "seconds": medians}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()

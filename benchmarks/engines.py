"""CPU time of a round with either engine on a CPU, model by model: the measurement behind engine = "auto".

    python benchmarks/engines.py [--rounds 3] [--seconds 1] [--out FILE]

Random data, K = 4 clients, one local epoch unless it says otherwise. CPU time of user and system, summed over threads,
per client and round: it changes less than the clock's on a machine that does other things too. Medians over rounds
after one uncounted, so many that they take a second: the system books its time in ticks of some milliseconds, and a few
rounds of a small model are not many more. "system" is the system's share: memory that is fetched from it anew in every
step shows there.
"""

import argparse
import resource
import statistics
from itertools import count
from pathlib import Path
from typing import Any

import torch
from report import RESULTS, write

from fedceo.data import Federation
from fedceo.models import build_model
from fedceo.training.context import TrainingContext
from fedceo.training.engine import choose_engine, make_trainer
from fedceo.training.schedule import Schedule
from fedceo.training.work import RecordPrivacy, Work

CLIENTS, CLASSES = 4, 10
RECORD = RecordPrivacy(clip=1.0, noise_multiplier=1.0)
SETTINGS: dict[str, tuple[str, tuple[int, ...], int, Work]] = {
    "MLP": ("mlp", (1, 28, 28), 600, Work(1, 64, 0.1)),
    "MLP, record": ("mlp", (1, 28, 28), 600, Work(1, 64, 0.1, record=RECORD)),
    "linear head, one epoch": ("logistic", (3888,), 45, Work(1, 32, 0.1)),
    "linear head, five epochs": ("logistic", (3888,), 45, Work(5, 32, 0.1)),
    "linear head, record, five epochs": ("logistic", (3888,), 450, Work(5, 64, 0.1, record=RECORD)),
    "MLP on 32x32, momentum, five epochs": ("mlp", (3, 32, 32), 400, Work(5, 64, 0.1, momentum=0.5)),
    "small CNN, 8x8": ("small-cnn", (1, 8, 8), 50, Work(1, 10, 0.1)),
    "small CNN, 28x28": ("small-cnn", (1, 28, 28), 100, Work(1, 10, 0.1)),
    "small CNN, 28x28, record": ("small-cnn", (1, 28, 28), 100, Work(1, 10, 0.1, record=RECORD)),
    "LeNet-5": ("lenet5", (3, 32, 32), 128, Work(1, 64, 0.1)),
    "LeNet-5, record": ("lenet5", (3, 32, 32), 128, Work(1, 64, 0.1, record=RECORD)),
    "AlexNet, record": ("alexnet", (3, 32, 32), 64, Work(1, 32, 0.1, record=RECORD)),
    "LSTM": ("lstm", (25,), 64, Work(1, 32, 0.1)),
    "LSTM, record": ("lstm", (25,), 64, Work(1, 32, 0.1, record=RECORD)),
}
"""Name -> model, shape of a record, records of a client, work."""


def make_context(model: str, shape: tuple[int, ...], records: int) -> TrainingContext:
    rng, total = torch.Generator().manual_seed(0), CLIENTS * records
    if model == "lstm":
        x = torch.randint(1, 10_001, (total, *shape), generator=rng, dtype=torch.int32)
    elif len(shape) == 1:
        x = torch.randn(total, *shape, generator=rng)
    else:
        x = torch.randint(256, (total, *shape), generator=rng, dtype=torch.uint8)
    y, none = torch.randint(CLASSES, (total,), generator=rng), torch.empty(0, dtype=torch.int64)
    train = list(torch.arange(total).view(CLIENTS, records))
    data = Federation("random", x, y, train, none, [none] * CLIENTS, x[:1], y[:1], CLASSES, (0.5,), (0.25,))
    return TrainingContext(build_model(model, shape, CLASSES, 0), data, Schedule(0), torch.device("cpu"), torch.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="at least")
    parser.add_argument("--seconds", type=float, default=1.0, help="of CPU, at least")
    parser.add_argument("--out", type=Path, default=RESULTS / "engines-cpu.json")
    options = parser.parse_args()
    print(f"{'CPU ms per client-round':<38}{'batched':>10}{'system':>8}{'loop':>10}{'system':>8}{'ratio':>8}   auto")
    rows: list[dict[str, Any]] = []
    for name, (model, shape, records, work) in SETTINGS.items():
        context = make_context(model, shape, records)
        starts = {name: p.detach().expand(CLIENTS, *p.shape) for name, p in context.model.named_parameters()}
        times: dict[str, list[tuple[float, float]]] = {"batched": [], "loop": []}
        for engine, spent in times.items():
            trainer = make_trainer(context, engine)
            for turn in count():
                before = resource.getrusage(resource.RUSAGE_SELF)
                trainer.train(starts, range(CLIENTS), turn + 1, work)
                after = resource.getrusage(resource.RUSAGE_SELF)
                if turn:
                    spent.append((after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime))
                if turn >= options.rounds and sum(map(sum, spent)) >= options.seconds:
                    break
        row: dict[str, Any] = {"setting": name, "auto": choose_engine(context, "auto")}
        for engine, spent in times.items():
            row[engine] = 1e3 * statistics.median(user + system for user, system in spent) / CLIENTS
            row[f"{engine}_system"] = sum(s for _, s in spent) / sum(u + s for u, s in spent)
        rows.append(row)
        shares = [f"{row[engine]:>10.1f}{row[f'{engine}_system']:>8.1%}" for engine in times]
        print(f"{name:<38}{''.join(shares)}{row['loop'] / row['batched']:>7.1f}x   {row['auto']}", flush=True)
    write({"rows": rows}, options.out)


if __name__ == "__main__":
    main()

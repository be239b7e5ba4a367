"""DLG on many records at once, against the same code row by row and against a loop over torch.optim.LBFGS.

    python benchmarks/attack_speed.py [--rows 64] [--out FILE]

Random images of CIFAR-10's shape on the network that gradient inversion is tried on, one core, a few steps of L-BFGS
(20 iterations each) from random starts. Everybody in turn, medians; rows by themselves are timed on the first eight.
The loop is written as attackers write it: autograd twice, one optimizer for each row.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from report import RESULTS, write
from torch import Tensor

from fedceo.attacks import Attack, Sender, reconstruct
from fedceo.models import build_model, parameters_of

SHAPE, CLASSES = (3, 32, 32), 10
STEPS, TURNS, ALONE = 3, 3, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64, help="records that are attacked at once")
    parser.add_argument("--out", type=Path, default=RESULTS / "attack-speed-cpu.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = build_model("dlg-lenet", SHAPE, CLASSES, seed=0)
    sender = Sender(model, parameters_of(model))
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (options.rows,), generator=rng)
    held = sender.updates(torch.rand(options.rows, *SHAPE, generator=rng), F.one_hot(labels, CLASSES).float())
    box = torch.zeros(SHAPE), torch.ones(SHAPE)
    attack = Attack("dlg", STEPS, restarts=1)
    alone = min(ALONE, options.rows)

    def batched() -> None:
        reconstruct(attack, sender, held, CLASSES, box)

    def row_by_row() -> None:
        for k in range(alone):
            reconstruct(attack, sender, {name: w[k : k + 1] for name, w in held.items()}, CLASSES, box)

    def torch_loop() -> None:
        for k in range(alone):
            usual(sender, {name: w[k] for name, w in held.items()})

    contenders: dict[str, tuple[Callable[[], None], int]] = {
        "all rows at once": (batched, options.rows),
        "row by row": (row_by_row, alone),
        "torch.optim.LBFGS": (torch_loop, alone),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(TURNS + 1):
        for name, (work, rows) in contenders.items():
            begin = time.perf_counter()
            work()
            if turn:  # the first warms up
                times[name].append((time.perf_counter() - begin) / (rows * STEPS))
    seconds = {name: statistics.median(each) for name, each in times.items()}
    print(f"{'':<20}{'ms a row and step':>20}{'ratio':>8}")
    for name, each in seconds.items():
        print(f"{name:<20}{1e3 * each:>20.1f}{each / seconds['all rows at once']:>8.1f}")
    write({"rows": options.rows, "seconds_a_row_and_step": seconds}, options.out)


def usual(sender: Sender, held: dict[str, Tensor]) -> None:
    """DLG on one update as its authors' program goes about it."""
    weights = {name: w.clone().requires_grad_() for name, w in sender.weights.items()}
    x, label = torch.randn(1, *SHAPE).requires_grad_(), torch.randn(1, CLASSES).requires_grad_()
    optimizer = torch.optim.LBFGS([x, label], lr=1.0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        logits = torch.func.functional_call(sender.model, weights, (x,))
        loss = -(label.softmax(1) * F.log_softmax(logits, 1)).sum()
        found = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        mismatch = torch.stack([(g - h).square().sum() for g, h in zip(found, held.values(), strict=True)]).sum()
        mismatch.backward()
        return mismatch

    for _ in range(STEPS):
        optimizer.step(closure)


if __name__ == "__main__":
    main()

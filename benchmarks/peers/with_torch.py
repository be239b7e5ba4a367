"""The loop everybody writes: one client after another, on a CPU with a DataLoader each.

python -m peers.with_torch WORK OUT
"""

import sys

import torch
from torch import nn

from peers.work import Clock, Work, train


def play_round(model: nn.Module, work: Work, turn: int, clients: list[int]) -> None:
    """One round of FedAvg, in place."""
    start = {name: w.clone() for name, w in model.state_dict().items()}
    total = {name: torch.zeros_like(w) for name, w in start.items()}
    for k in range(len(clients)):
        model.load_state_dict(start)
        train(model, work.loader(turn, k), work.setting.rate)
        for name, w in model.state_dict().items():
            total[name] += w / len(clients)
    model.load_state_dict(total)


def main(folder: str, out: str) -> None:
    work, clock = Work(folder), Clock(out)
    model = work.model()
    for turn, clients in work.rounds():
        play_round(model, work, turn, clients)
        clock.tick()
    clock.finish(model.state_dict(), {"torch": torch.__version__})


if __name__ == "__main__":
    main(*sys.argv[1:])

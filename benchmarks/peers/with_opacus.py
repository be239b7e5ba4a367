"""The loop everybody writes for record-level privacy: one client after another, Opacus around model and optimiser.

    python -m peers.with_opacus WORK OUT

Opacus' own Poisson loader draws its own batches; here it is given those that all contenders take, and an empty batch
is a step of noise alone.
"""

import sys
from collections.abc import Iterable

import opacus
import torch
import torch.nn.functional as F
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor

from peers.work import Clock, Work


def train_privately(model: GradSampleModule, loader: Iterable[tuple[Tensor, Tensor]], work: Work) -> None:
    """DP-SGD over a client's batches, in place."""
    setting = work.setting
    optimiser = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=setting.rate),
        noise_multiplier=setting.noise,
        max_grad_norm=setting.clip,
        expected_batch_size=setting.records / -(-setting.records // setting.batch),
    )
    model.train()
    for x, y in loader:
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()


def play_round(model: GradSampleModule, work: Work, turn: int, clients: list[int]) -> None:
    """One round of FedAvg, in place."""
    start = {name: w.clone() for name, w in model.state_dict().items()}
    total = {name: torch.zeros_like(w) for name, w in start.items()}
    for k in range(len(clients)):
        model.load_state_dict(start)
        train_privately(model, work.loader(turn, k), work)
        for name, w in model.state_dict().items():
            total[name] += w / len(clients)
    model.load_state_dict(total)


def main(folder: str, out: str) -> None:
    work, clock = Work(folder), Clock(out)
    model = GradSampleModule(work.model())
    for turn, clients in work.rounds():
        play_round(model, work, turn, clients)
        clock.tick()
    versions = {"torch": torch.__version__, "opacus": opacus.__version__}
    clock.finish(model._module.state_dict(), versions)


if __name__ == "__main__":
    main(*sys.argv[1:])

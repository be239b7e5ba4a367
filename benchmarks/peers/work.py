"""The work of every contender, as plain data: records, cohorts, batches and start weights, read from one folder.

Needs torch and numpy only, so that it can be imported in every environment. A contender loads the `Work`, calls
`Clock.tick` at the end of each round and `Clock.finish` with its final weights. On a GPU all records and the places of
all batches lie in the GPU's memory, so that nobody waits for the host.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass(frozen=True)
class Setting:
    """A federation of equal clients and what one round of it does.

    Attributes:
        model: pfl-cnn | cnn | lenet5.
        clip, noise: of DP-SGD inside local training; no clip means plain SGD.
        rounds: rounds of a run; the first ones are start-up, the others are steady.
        device: cpu | cuda, where everybody trains.
        tf32: whether a GPU may round the factors of float32 products to TF32, everybody's alike.
    """

    name: str
    model: str
    clients: int
    cohort: int
    records: int
    batch: int
    rate: float
    rounds: int
    clip: float | None = None
    noise: float = 0.0
    epochs: int = 1
    device: str = "cpu"
    tf32: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record; pfl's CNN takes images with channels last, as its authors store them."""
        return (32, 32, 3) if self.model == "pfl-cnn" else (3, 32, 32)


class ChannelsFirst(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 3, 1, 2)


def build(name: str) -> nn.Module:
    """The CNN of pfl's own CIFAR-10 benchmark without its dropout, so that final weights can be compared, for images
    with channels last or first; or LeNet-5, which only environments with fedceo know."""
    torch.manual_seed(0)
    if name == "lenet5":
        from fedceo.models.lenet5 import LeNet5

        return LeNet5((3, 32, 32), 10)
    return nn.Sequential(
        *([ChannelsFirst()] if name == "pfl-cnn" else []),
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class Work:
    """A prepared folder, as written by `race.prepare`; makes torch compute in the setting's precision."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.setting = Setting(**json.loads((self.folder / "setting.json").read_text()))
        torch.set_float32_matmul_precision("high" if self.setting.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = self.setting.tf32

    def array(self, name: str) -> np.ndarray:
        """One of x, y, cohorts and batches, on the host."""
        # Copy-on-write pages: nobody pays for records it does not touch, and torch gets memory it may write to.
        return np.load(self.folder / f"{name}.npy", mmap_mode="c")

    def _tensor(self, name: str) -> Tensor:
        return torch.from_numpy(self.array(name)).to(self.setting.device)

    @cached_property
    def x(self) -> Tensor:
        """(clients, records, *shape)."""
        return self._tensor("x")

    @cached_property
    def y(self) -> Tensor:
        """(clients, records)."""
        return self._tensor("y")

    @cached_property
    def cohorts(self) -> np.ndarray:
        """(rounds, K) client numbers."""
        return self.array("cohorts")

    @cached_property
    def _batches(self) -> Tensor:
        return self._tensor("batches")

    @cached_property
    def _sizes(self) -> list[list[list[int]]]:
        return (self.array("batches") >= 0).sum(-1).tolist()

    def batches(self, turn: int, k: int) -> list[Tensor]:
        """The batches, as places in its own records, of the k-th client of round `turn`, counted from 0."""
        # the sizes are known to the host, for asking a GPU would make it wait
        return [row[:size] for row, size in zip(self._batches[turn, k], self._sizes[turn][k], strict=True)]

    def loader(self, turn: int, k: int) -> Iterable[tuple[Tensor, Tensor]]:
        """The k-th client's batches of (x, y) in the way that is usual: from a DataLoader, or gathered on the GPU."""
        client = self.cohorts[turn, k]
        x, y = self.x[client], self.y[client]
        if self.setting.device == "cpu":
            return DataLoader(TensorDataset(x, y), batch_sampler=self.batches(turn, k))  # type: ignore[arg-type]
        return ((x[places], y[places]) for places in self.batches(turn, k))

    def model(self) -> nn.Module:
        """A new model with the start weights."""
        model = build(self.setting.model)
        with np.load(self.folder / "start.npz") as start:
            model.load_state_dict({name: torch.from_numpy(start[name]) for name in start.files})
        return model.to(self.setting.device)

    def rounds(self) -> Iterator[tuple[int, list[int]]]:
        """(turn, clients) of every round."""
        for turn, clients in enumerate(self.cohorts[: self.setting.rounds]):
            yield turn, clients.tolist()


def train(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], rate: float) -> None:
    """Plain SGD over batches of (x, y), in place."""
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    model.train()
    for x, y in batches:
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()


class Clock:
    """When each round of a contender ended, in seconds of the wall clock that the race reads too."""

    def __init__(self, out: str | Path) -> None:
        self.out = Path(out)
        self.ends: list[float] = []

    def tick(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.ends.append(time.time())

    def finish(self, weights: Mapping[str, Tensor], versions: Mapping[str, str]) -> None:
        arrays: dict[str, Any] = {name: w.detach().cpu().numpy() for name, w in weights.items()}
        np.savez(self.out.with_suffix(".npz"), **arrays)
        self.out.write_text(json.dumps({"ends": self.ends, "versions": dict(versions)}))


def save_setting(setting: Setting, folder: Path) -> None:
    (folder / "setting.json").write_text(json.dumps(asdict(setting)))

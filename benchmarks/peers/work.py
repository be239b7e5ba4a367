"""The work of every contender, as plain data: records, cohorts, batches and start weights, read from one folder.

Needs torch and numpy only, so that it can be imported in every environment. A contender loads the `Work`, calls
`Clock.tick` at the end of each round and `Clock.finish` with its final weights.
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


@dataclass(frozen=True)
class Setting:
    """A federation of equal clients and what one round of it does.

    Attributes:
        model: cnn | lenet5.
        clip, noise: of DP-SGD inside local training; no clip means plain SGD.
        rounds: rounds of a run; the first is start-up, the others are steady.
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

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record; the CNN takes images with channels last, as its authors store them."""
        return (32, 32, 3) if self.model == "cnn" else (3, 32, 32)


class ChannelsFirst(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 3, 1, 2)


def build(name: str) -> nn.Module:
    """The CNN of pfl's own CIFAR-10 benchmark without its dropout, so that final weights can be compared; or LeNet-5,
    which only environments with fedceo know."""
    torch.manual_seed(0)
    if name == "lenet5":
        from fedceo.models.lenet5 import LeNet5

        return LeNet5((3, 32, 32), 10)
    return nn.Sequential(
        ChannelsFirst(),
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
    """A prepared folder, as written by `race.prepare`."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.setting = Setting(**json.loads((self.folder / "setting.json").read_text()))

    def _array(self, name: str) -> np.ndarray:
        # Copy-on-write pages: nobody pays for records it does not touch, and torch gets memory it may write to.
        return np.load(self.folder / f"{name}.npy", mmap_mode="c")

    @cached_property
    def x(self) -> Tensor:
        """(clients, records, *shape)."""
        return torch.from_numpy(self._array("x"))

    @cached_property
    def y(self) -> Tensor:
        """(clients, records)."""
        return torch.from_numpy(self._array("y"))

    @cached_property
    def cohorts(self) -> np.ndarray:
        """(rounds, K) client numbers."""
        return self._array("cohorts")

    @cached_property
    def _batches(self) -> Tensor:
        return torch.from_numpy(self._array("batches"))

    def batches(self, turn: int, k: int) -> list[Tensor]:
        """The batches, as places in its own records, of the k-th client of round `turn`, counted from 0."""
        return [row[row >= 0] for row in self._batches[turn, k]]

    def model(self) -> nn.Module:
        """A new model with the start weights."""
        model = build(self.setting.model)
        with np.load(self.folder / "start.npz") as start:
            model.load_state_dict({name: torch.from_numpy(start[name]) for name in start.files})
        return model

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
        self.ends.append(time.time())

    def finish(self, weights: Mapping[str, Tensor], versions: Mapping[str, str]) -> None:
        arrays: dict[str, Any] = {name: w.detach().numpy() for name, w in weights.items()}
        np.savez(self.out.with_suffix(".npz"), **arrays)
        self.out.write_text(json.dumps({"ends": self.ends, "versions": dict(versions)}))


def save_setting(setting: Setting, folder: Path) -> None:
    (folder / "setting.json").write_text(json.dumps(asdict(setting)))

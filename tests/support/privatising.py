"""A cohort of random updates and the mechanism that privatises them."""

from typing import Any

import torch
from torch import Tensor

from fedceo.mechanisms.base import MECHANISMS, Mechanism
from fedceo.mechanisms.uploads import Contribution, Senders, Uploads
from fedceo.training.schedule import Schedule

K, SIZE = 10, 20_000


def mechanism(kind: str = "distributed", **changes: Any) -> Mechanism:
    """A mechanism for cohorts of K with clip 2, noise multiplier 1.5 and server step 0.5, or with fields changed."""
    settings: dict[str, Any] = {
        "clip": 2.0, "noise_multiplier": 1.5, "min_reports": K, "divisor": float(K),
        "step": 0.5, "schedule": Schedule(0),
    }  # fmt: skip
    return MECHANISMS[kind](**(settings | changes))


def privatised(made: Mechanism, starts: dict[str, Tensor], trained: dict[str, Tensor], round_: int = 1) -> Uploads:
    """The uploads of clients 0 to K - 1, who hold one record each."""
    origin = {name: w[0] for name, w in starts.items()}
    return made.privatise(Contribution(starts, trained), Senders(round_, tuple(range(K)), torch.ones(K)), origin)


def cohort(scale: float = 1.0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The start and the trained weights of K clients, SIZE entries each; updates are normal with that scale."""
    torch.manual_seed(0)
    starts = {"a": torch.randn(K, SIZE // 2), "b": torch.randn(K, 5, SIZE // 10)}
    return starts, {name: w + scale * torch.randn_like(w) for name, w in starts.items()}

"""A small experiment that tests of runs change and kill."""

from typing import Any

import torch

import fedceo

TABLE: dict[str, Any] = {
    "data": {"name": "digits", "clients": 30},
    "cohort": {"size": 6},
    "train": {"rounds": 12, "local_epochs": 1, "batch_size": 16},
    "privacy": {"mechanism": "distributed", "noise_multiplier": 0.5},
    "method": {"name": "fedceo", "interval": 4, "strength": 5.0},
    "evaluation": {"every": 3},
    "checkpoint": {"every": 5},
}


def changed(**sections: dict[str, Any]) -> dict[str, Any]:
    """The experiment above with fields of some sections changed."""
    return TABLE | {name: TABLE.get(name, {}) | fields for name, fields in sections.items()}


class KilledError(Exception):
    """The run was ended from outside."""


def kill(record: dict[str, Any]) -> None:
    """An `on_round` that ends the run without warning."""
    raise KilledError


def same_weights(a: fedceo.Run, b: fedceo.Run) -> bool:
    return all(torch.equal(a.weights[name], b.weights[name]) for name in a.weights)

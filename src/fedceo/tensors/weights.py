"""Models as mappings from the names of parameters to tensors, one model or a stack of K with the client axis first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TypeAlias

from fedceo.lazy import torch

Weights: TypeAlias = Mapping[str, "torch.Tensor"]
"""name -> (...) of one model, or name -> (K, ...) of K models."""


def repeat(weights: Weights, clients: int) -> dict[str, torch.Tensor]:
    """One model for each of K clients, without copying it: name -> (K, ...)."""
    return {name: w.expand(clients, *w.shape) for name, w in weights.items()}


def stack(models: Sequence[Weights]) -> dict[str, torch.Tensor]:
    """K models as one stack: name -> (K, ...)."""
    return {name: torch.stack([model[name] for model in models]) for name in models[0]}


def flat(stack: torch.Tensor) -> torch.Tensor:
    """(K, ...) -> (K, entries), scalars and empty stacks included."""
    return stack.reshape(len(stack), prod(stack.shape[1:]))


def as_rows(weights: Weights) -> torch.Tensor:
    """name -> (K, ...) as (K, D), the tensors side by side in their order."""
    return torch.cat([flat(w) for w in weights.values()], 1)


def as_row(weights: Weights) -> torch.Tensor:
    """name -> (...) as (D,), the tensors one after another in their order."""
    return torch.cat([w.flatten() for w in weights.values()])


def from_row(row: torch.Tensor, like: Weights) -> dict[str, torch.Tensor]:
    """Undo `as_row` without copying: (D,) as name -> (...), views in the shapes of `like`."""
    parts = torch.split(row, [w.numel() for w in like.values()])
    return {name: part.view(w.shape) for (name, w), part in zip(like.items(), parts, strict=True)}


def from_rows(rows: torch.Tensor, like: Weights) -> dict[str, torch.Tensor]:
    """Undo `as_rows`: (K, D) as name -> (K, ...), in the shapes of `like`, a stack of any number of models."""
    parts = torch.split(rows, [w[0].numel() for w in like.values()], 1)
    return {name: part.reshape(len(rows), *w.shape[1:]) for (name, w), part in zip(like.items(), parts, strict=True)}


def last_layer(weights: Weights) -> tuple[str, ...]:
    """The names of the last layer's parameters."""
    prefix = list(weights)[-1].rpartition(".")[0]
    return tuple(name for name in weights if name.rpartition(".")[0] == prefix)

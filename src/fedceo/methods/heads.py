"""Personal last layers (heads), which several methods keep with their clients.

A personal part never leaves its client, so that only the shared part is clipped, noised and accounted for. It is kept
in State.personal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedceo.errors import UsageError
from fedceo.lazy import torch
from fedceo.methods.base import State
from fedceo.tensors.weights import Weights, last_layer


def check_head(method: str, weights: Weights, classes: int) -> None:
    """Refuse a model whose last registered layer does not give the logits."""
    head = last_layer(weights)[0]
    if len(weights[head]) != classes:
        raise UsageError(
            f"method.name: {method} keeps the last layer at home, and the last that the model registers, "
            f"{head}, does not give the {classes} logits; define that layer last"
        )


def check_shared_layers(method: str, weights: Weights) -> None:
    """Refuse a model of one layer for a method that shares the layers before the last."""
    if len(last_layer(weights)) == len(weights):
        raise UsageError(f"method.name: {method} shares the layers before the last, and the model has only one")


def kept_parts(
    state: State, clients: Sequence[int], names: frozenset[str], kept: Mapping[int, Weights]
) -> dict[str, torch.Tensor]:
    """Each client's own tensors of these names, or the global model's for those who have none yet: name -> (K, ...)."""
    return {
        name: torch.stack([kept.get(client, state.weights)[name] for client in clients])
        for name in state.weights
        if name in names and clients
    }

"""Stacks of uploads that reach back over rounds: what a server that sees single uploads may remember of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fedceo.lazy import torch
from fedceo.mechanisms.uploads import Stack
from fedceo.methods.base import State
from fedceo.tensors.weights import Weights

Memory = dict[str, dict[str, "torch.Tensor"]]
"""Tensors for State.server."""


def resubmitted(uploads: Stack, seen: Collection[int], before: Weights) -> Stack:
    """Uploads of clients that were never seen give way to the upload before them, the first one's to `before`."""
    rows = list(range(len(uploads.clients)))
    for k, client in enumerate(uploads.clients):
        if client not in seen:
            rows[k] = rows[k - 1] if k else -1
    given = {name: torch.cat([w, before[name][None]])[rows] for name, w in uploads.weights.items()}
    return replace(uploads, weights=given)


def last_uploads(state: State, uploads: Stack) -> Stack:
    """The last upload of every client so far, those of this round included, in ascending client number."""
    if "uploads" not in state.server:
        return uploads
    before = state.server["seen"]["clients"].tolist()
    rows = {client: row for row, client in enumerate([*before, *uploads.clients])}  # a later row takes the place
    clients = tuple(sorted(rows))
    chosen = [rows[client] for client in clients]
    last = {name: torch.cat([state.server["uploads"][name], w])[chosen] for name, w in uploads.weights.items()}
    return replace(uploads, weights=last, clients=clients, sizes=uploads.sizes.new_ones(len(clients)))


def averaged_uploads(state: State, uploads: Stack) -> tuple[Stack, Memory]:
    """The mean of the uploads plus the mean deviation of every client over its rounds, and what to remember of these.

    Deviations are centred over the clients seen, so that the mean of the stack is that of the uploads.
    """
    mean, device = uploads.mean(), uploads.sizes.device
    before = state.server.get("seen", {})
    known = before["clients"].tolist() if before else []
    clients = tuple(sorted({*known, *uploads.clients}))
    row = {client: place for place, client in enumerate(clients)}
    old, new = [row[client] for client in known], [row[client] for client in uploads.clients]
    rounds = torch.zeros(len(clients), dtype=torch.int64, device=device)
    rounds[new] = 1
    if before:
        rounds[old] += before["rounds"].to(device)
    sums, averaged = {}, {}
    for name, w in uploads.weights.items():
        total = _placed(w - mean[name], new, len(clients))
        if before:
            total += _placed(state.server["deviations"][name], old, len(clients))
        deviations = total / rounds.to(w).view(-1, *[1] * (w.ndim - 1))
        sums[name], averaged[name] = total, deviations.add_(mean[name] - deviations.mean(0))
    stack = replace(uploads, weights=averaged, clients=clients, sizes=uploads.sizes.new_ones(len(clients)))
    seen = {"clients": torch.tensor(clients, dtype=torch.int64), "rounds": rounds}
    return stack, {"deviations": sums, "seen": seen}


def _placed(rows: torch.Tensor, places: list[int], count: int) -> torch.Tensor:
    """`count` rows: those given at their places, zeros elsewhere; the given ones themselves where all are in order."""
    if places == list(range(count)):
        return rows
    placed = rows.new_zeros(count, *rows.shape[1:])
    placed[places] = rows
    return placed

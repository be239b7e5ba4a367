"""What leaves the server: the released model, and the models that clients are handed.

Both must follow from what the server saw and from nothing else. So the auditor takes the mean of the uploads by itself,
equally weighted and over the number that the accounting assumes, hands it to another object of the method and compares
(`release`). And it hands the method uploads of its own making, that have nothing to do with this round's updates:
whatever still points along a client's update, in the model, in the server's memory or in what clients are handed other
than of their own, has leaked past the mechanism (`leak`).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedceo.audit.findings import Finding, Floats, normal_finding
from fedceo.audit.rehearsal import Played, fresh, model_row
from fedceo.mechanisms.uploads import Mean, Stack, Uploads
from fedceo.tensors.weights import Weights, as_rows

if TYPE_CHECKING:
    from fedceo.methods.base import Method, State

TOLERANCE = 1e-2
"""The largest difference that rounding explains, in standard deviations of the noise in a released entry."""
ROUNDING = 1e-4
"""The same in units of the largest weight."""
LITTLE = 1e-2
"""Spread of the auditor's own uploads, in units of the clip."""


class ServerStep:
    """Looks at rounds that were played."""

    def __init__(self, divisor: float | None, rng: np.random.Generator) -> None:
        """divisor: what the accounting takes the sum of the updates to be divided by; None: by the reports."""
        self._divisor, self._rng = divisor, rng
        self._apart = 0.0
        self._along: list[Floats] = []

    def add(self, round_: Played, spread: float) -> None:
        """spread: standard deviation of the noise in an entry of the released model."""
        if round_.collected is None:
            return
        method, clients, t = fresh(round_.method), round_.entry.reported, round_.entry.round
        memory = _with_kept_parts(round_)
        expected, _ = method.aggregate(memory, self._own_view(round_, method), t)
        tolerance = TOLERANCE * spread + ROUNDING * float(np.abs(model_row(round_.after.weights)).max())
        difference = [model_row(round_.after.weights) - model_row(expected.weights)]
        if clients:
            handed = (as_rows(method.starts(state, clients, t + 1)) for state in (round_.after, expected))
            difference.append(np.ravel(np.subtract(*(rows.double().cpu().numpy() for rows in handed))))
            begun = as_rows(fresh(round_.method).starts(round_.before, clients, t)).double().cpu()
            difference += [
                (begun[k] - round_.starts[client].double().cpu()).numpy()
                for k, client in enumerate(clients)
                if client in round_.starts
            ]
        self._apart = max(self._apart, *(float(np.abs(d).max()) / tolerance for d in difference))
        self._leaks(round_, memory)

    def findings(self) -> list[Finding]:
        scores = np.concatenate([*self._along, np.empty(0)])
        return [
            Finding("release", self._apart <= 1, self._apart, "at most 1 times what rounding explains"),
            normal_finding("leak", scores, "along a bare update, in what is made of uploads without it"),
        ]

    def _own_view(self, round_: Played, method: "Method") -> Uploads:
        """The uploads as the method must see them, their mean taken by a second implementation."""
        assert round_.collected is not None
        uploads = round_.collected.uploads
        if isinstance(uploads, Stack):
            ones = torch.ones(len(uploads.clients), dtype=torch.float64)
            if method.needs_stack:
                return replace(uploads, sizes=ones)
            if method.setup.aggregation != "mean":
                return method.visible(uploads)
            mean = {n: w.double().sum(0).div(len(w)).to(w.dtype) for n, w in uploads.weights.items()}
            return Mean(mean, float(len(uploads.clients)), uploads.nonfinite, uploads.unclipped)
        assert self._divisor is not None
        return replace(uploads, divisor=self._divisor)

    def _leaks(self, round_: Played, memory: "State") -> None:
        assert round_.collected is not None
        method, clients, t = fresh(round_.method), round_.entry.reported, round_.entry.round
        if not round_.moved:
            return
        after, _ = method.aggregate(memory, self._made_up(round_, method.needs_stack), t)
        updates = np.stack([moved.double().cpu().numpy() for moved in round_.moved.values()])
        origin = model_row(round_.before.weights)
        shared = [model_row(after.weights) - origin, *_changes_of_memory(round_.before, after)]
        found = [_scores(row[None], updates).ravel() for row in shared]
        is_own = np.array([[client == other for other in round_.moved] for client in clients])
        handed = [as_rows(method.starts(after, clients, t + 1)), as_rows(method.personalise(after, clients, t))]
        if torch.equal(*handed):
            handed.pop()
        for rows in handed:
            moved = rows.double().cpu().numpy() - origin
            if bool((moved == moved[0]).all()):  # everybody is handed the global model
                continue
            found.append(_scores(moved, updates)[~is_own])
            found.append(_scores(moved, updates * _stays_nowhere(round_))[is_own])
        scores = np.concatenate(found)
        self._along.append(scores[np.isfinite(scores)])

    def _made_up(self, round_: Played, needs_stack: bool) -> Uploads:
        """Uploads that nobody sent: a little noise around the start."""
        assert round_.collected is not None
        uploads = round_.collected.uploads

        def around(weights: Weights) -> dict[str, torch.Tensor]:
            spread = LITTLE * round_.clip
            return {
                n: w + spread * torch.from_numpy(self._rng.standard_normal(w.shape)).to(w) for n, w in weights.items()
            }

        names = list(uploads.weights)
        if needs_stack:
            assert isinstance(uploads, Stack)
            rows = {name: round_.before.weights[name].expand_as(uploads.weights[name]) for name in names}
            return replace(uploads, weights=around(rows))
        count = self._divisor or float(len(round_.entry.reported))
        return Mean(around({name: round_.before.weights[name] for name in names}), count, 0, uploads.unclipped)


def _with_kept_parts(round_: Played) -> "State":
    """The method's memory as the server's step finds it."""
    assert round_.collected is not None
    return replace(round_.before, personal={**round_.before.personal, **round_.collected.personal})


def _changes_of_memory(before: "State", after: "State") -> list[Floats]:
    """(D,) changes of all that the server keeps in the form of a model, which clients may be handed."""
    shapes = {name: w.shape for name, w in before.weights.items()}

    def row(tensors: Weights) -> Floats:
        return model_row({name: tensors[name] for name in shapes})

    nothing = {name: torch.zeros_like(w) for name, w in before.weights.items()}
    return [
        row(tensors) - row(before.server.get(kind, nothing))
        for kind, tensors in after.server.items()
        if {name: t.shape for name, t in tensors.items()} == shapes
    ]


def _stays_nowhere(round_: Played) -> Floats:
    """(D,) 1 for entries of which clients keep no part of their own, 0 for the others."""
    assert round_.collected is not None
    kept = {name for parts in round_.collected.personal.values() for name in parts}
    return np.concatenate([np.full(w.numel(), float(n not in kept)) for n, w in round_.before.weights.items()])


def _scores(rows: Floats, updates: Floats) -> Floats:
    """<x, Delta> over its standard deviation under random signs of Delta, (rows, updates); at most 1 wide."""
    spread = np.sqrt(np.square(rows) @ np.square(updates).T)
    return np.divide(rows @ updates.T, spread, out=np.zeros_like(spread), where=spread > 0)

"""Counts of their own records that clients release: the noise on them, how far a record moves them, and how often.

The run's own code sums what records add, noises it and says when; only what a record adds is the auditor's. Some of it
is longer than the accountant takes any record to add, and must have been cut.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedceo.audit.findings import Finding, Floats, variance_finding
from fedceo.methods.base import Method, Predict, State
from fedceo.simulation.counting import noised_counts

if TYPE_CHECKING:
    from fedceo.simulation.rounds import Simulation

WIDTH = 50
"""Counts of a client; so many normals tell noise that two clients share from chance."""
MOST_CLIENTS = 400
TOO_LONG = 1e3
"""Times the longest that a record may add, of every client's first record."""
ASKED_CLIENTS = 3


def count_findings(simulation: "Simulation", rng: np.random.Generator) -> list[Finding]:
    """The checks; none where clients release no counts."""
    if simulation.method.settings.counts is None:
        return []
    noise = _noise(simulation, rng)
    clients, sums = len(noise), np.square(noise)
    degrees = np.array([*[float(WIDTH)] * clients, float(WIDTH * clients)])
    of = "the noise that is claimed"
    together = np.array([np.square(noise.sum(0)).sum() / clients])
    return [
        variance_finding("counts", np.array([*sums.sum(1), sums.sum()]), degrees, of),
        variance_finding("counts, sums", together, np.array([float(WIDTH)]), f"{of}, each client's its own"),
        _times(simulation),
    ]


def _noise(simulation: "Simulation", rng: np.random.Generator) -> Floats:
    """(clients, WIDTH) what is left of released counts without what the records add, over the noise that is claimed."""
    method, counts = _Known(simulation.method, rng), simulation.method.settings.counts
    assert counts is not None
    clients = tuple(range(min(simulation.federation.clients, MOST_CLIENTS)))
    entry = replace(simulation.draw(), reported=clients, capped=())
    found = noised_counts(method, simulation.mechanism, simulation.context, simulation.state, entry)
    rows = []
    for client in clients:
        added = method.added[client].numpy()
        lengths = np.linalg.norm(added, axis=1, keepdims=True)
        cut = added * np.minimum(1.0, counts.moved / lengths)
        rows.append((found[client].double().cpu().numpy() - cut.sum(0)) / counts.noise)
    return np.array(rows)


class _Known(Method):
    """The run's method, of whose counts the auditor knows what every record adds."""

    def __init__(self, method: Method, rng: np.random.Generator) -> None:
        super().__init__(method.settings, method.setup)
        self.rng = rng
        self.added: dict[int, Tensor] = {}

    def counted(self, state: State, client: int, round_: int, labels: Tensor, predict: Predict) -> Tensor | None:
        rows = self.rng.standard_normal((len(labels), WIDTH))
        rows *= self.settings.counts.moved / np.linalg.norm(rows, axis=1, keepdims=True)
        rows[0] *= TOO_LONG
        self.added[client] = torch.from_numpy(rows)
        return self.added[client]


def _times(simulation: "Simulation") -> Finding:
    """In how many of the run's rounds a client releases counts, whether it has a model of its own yet or not."""
    method, context, most = simulation.method, simulation.context, 0
    for client in range(min(simulation.federation.clients, ASKED_CLIENTS)):
        labels = context.labels[context.federation.train[client].to(context.device)]
        for personal in ({}, {client: dict(simulation.state.weights)}):
            state, times = replace(simulation.state, personal=personal), 0
            for t in range(1, simulation.experiment.train.rounds + 1):
                added = method.counted(state, client, t, labels, lambda _, labels=labels: labels)  # type: ignore[misc]
                if added is not None:
                    times, state = times + 1, method.told(state, {client: added.double().sum(0)})
            most = max(most, times)
    return Finding("counts, rounds", most <= 1, float(most), "at most 1 round in which a client releases counts")

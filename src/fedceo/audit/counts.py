"""Counts of their own records that clients release: the noise on them, how far a record moves them, and how often.

Rounds of the run are rehearsed twice. Once the method's clients count what it has them count, and once, in every round,
numbers that the auditor makes, of which each client's first record adds far more than the accountant takes it to.
What is left of the released counts without what records add, cut to the length that is accounted for, must be the
noise that is claimed, and no client may release counts in a second round.
"""

import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedceo.audit.findings import Finding, Floats, variance_finding
from fedceo.audit.rehearsal import KnownTrainer, Rehearsal, another_seed
from fedceo.methods.base import Predict, State

if TYPE_CHECKING:
    from fedceo.simulation.rounds import Simulation

WIDTH = 50
"""Counts that the auditor makes of a client; so many normals tell noise that two clients share from chance."""
MOST_CLIENTS, MOST_ROWS = 200, 1000
TOO_LONG = 1e3
"""Times the longest that a record may add, of every client's first record."""
ROUNDING = 1e-6


def count_findings(simulation: "Simulation", rng: np.random.Generator) -> list[Finding]:
    """The checks; none where clients release no counts."""
    counts = simulation.method.settings.counts
    if counts is None:
        return []
    played = [_Played(simulation, rng, own) for own in (False, True)]
    noises = [each.noise for each in played if each.noise.size]
    single = [np.append(np.square(noise).sum(1), np.square(noise).sum()) for noise in noises]
    degrees = [np.append(np.full(len(noise), float(noise.shape[1])), float(noise.size)) for noise in noises]
    together = [np.square(noise.sum(0)).sum() / len(noise) for noise in noises]
    widths = [float(noise.shape[1]) for noise in noises]
    times, claim = max(each.times for each in played), "the noise that is claimed"
    return [
        variance_finding("counts", np.concatenate(single), np.concatenate(degrees), claim),
        variance_finding("counts, sums", np.array(together), np.array(widths), f"{claim}, each client's its own"),
        _reach(played[0], counts.replaced),
        Finding("counts, rounds", times <= 1, float(times), "at most 1 round in which a client releases counts"),
    ]


class _Played:
    """Rounds in which clients count what the method has them count, or the auditor's own numbers.

    Attributes:
        rows: client -> (n, counts) what its records add, each cut to the length that is accounted for.
        noise: (clients, counts) what is left of the counts that were released first, over the noise that is claimed.
        times: rounds in which a client released counts, at most.
    """

    def __init__(self, simulation: "Simulation", rng: np.random.Generator, own: bool) -> None:
        counts = simulation.method.settings.counts
        assert counts is not None
        rehearsal = Rehearsal(simulation, KnownTrainer(rng), another_seed(rng))
        method = rehearsal.simulation.method = copy.copy(simulation.method)
        asked, added = simulation.method.counted, dict[int, Tensor]()

        def made(labels: Tensor) -> Tensor:
            rows = rng.standard_normal((len(labels), WIDTH))
            rows *= counts.moved / np.linalg.norm(rows, axis=1, keepdims=True)
            rows[0] *= TOO_LONG
            return torch.from_numpy(rows)

        def counted(state: State, client: int, round_: int, labels: Tensor, predict: Predict) -> Tensor | None:
            found = made(labels) if own else asked(state, client, round_, labels, predict)
            if found is not None:
                added[client] = found
            return found

        method.counted = counted  # type: ignore[method-assign]
        if own:
            method.told = lambda state, counts: state  # type: ignore[method-assign]
        last, clients = simulation.experiment.train.rounds, range(min(simulation.federation.clients, MOST_CLIENTS))
        self.rows: dict[int, Floats] = {}
        times, noise = dict.fromkeys(clients, 0), []
        for t in sorted({1, 2, 3, last - 1, last} & {*range(1, last + 1)}):
            added.clear()
            collected = rehearsal.play(rehearsal.entry(t, clients)).collected
            for client, released in ({} if collected is None else collected.counts).items():
                times[client] += 1
                if client not in self.rows:
                    rows = added[client].double().cpu().numpy()
                    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
                    self.rows[client] = rows * np.minimum(1.0, counts.moved / np.maximum(lengths, 1e-300))
                    noise.append((released.double().cpu().numpy() - self.rows[client].sum(0)) / counts.noise)
        self.times = max(times.values())
        self.noise: Floats = np.array(noise)


def _reach(played: _Played, most: float) -> Finding:
    """How far the counts move where one of the records that were met takes another's place."""
    met = np.concatenate(list(played.rows.values())) if played.rows else np.zeros((1, 1))
    some = torch.from_numpy(np.unique(met, axis=0)[:MOST_ROWS])
    farthest = float(torch.cdist(some, some).max())
    return Finding("counts, reach", farthest <= most + ROUNDING, farthest, f"at most {most:.4g} between two records")

"""Single values of uploads: no two uploads are alike, and their values do not come in steps.

Noise made in bfloat16 or float16 has the right variance but so few values that they give the update away.
"""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedceo.audit.findings import Finding, Floats
from fedceo.audit.rehearsal import KnownTrainer, Rehearsal, another_seed
from fedceo.mechanisms.uploads import Stack
from fedceo.tensors.weights import as_row, as_rows

if TYPE_CHECKING:
    from fedceo.simulation.rounds import Simulation

ENOUGH_VALUES = 50_000
"""Entries after which half-precision noise, of which there are some ten thousand likely values, shows repetitions."""
MOST_VALUES = 1_000_000


def value_findings(simulation: "Simulation", spread: float, rng: np.random.Generator) -> list[Finding]:
    """Uploads of zero updates from weights of 1.0.

    Args:
        spread: standard deviation of the noise in an entry of an upload, or of a mean that is noised.
    """
    ones = {name: torch.ones_like(w) for name, w in simulation.state.weights.items()}
    found: list[Floats] = []
    while len(found) < 2 or sum(rows.size for rows in found) < ENOUGH_VALUES:
        found += _one_run(simulation, ones, ENOUGH_VALUES, rng)
    uploads = np.concatenate(found)
    alike = len(uploads) - len(np.unique(uploads, axis=0))
    values = uploads.ravel()[:: math.ceil(uploads.size / MOST_VALUES)]
    dtype = next(iter(ones.values())).dtype
    ideal = torch.from_numpy(1.0 + spread * rng.standard_normal(values.size)).to(dtype)
    share = len(np.unique(values)) / len(torch.unique(ideal))
    return [
        Finding("freshness", alike == 0, float(alike), f"0 of {len(uploads)} uploads that came before"),
        Finding("values", share >= 0.5, share, "at least 0.5 of the different values of exact noise"),
    ]


def _one_run(
    simulation: "Simulation", ones: dict[str, torch.Tensor], enough: int, rng: np.random.Generator
) -> list[Floats]:
    """Rounds of another run, or of the first round again and again where even that does not repeat itself."""
    experiment = simulation.experiment
    rehearsal = Rehearsal(simulation, KnownTrainer(rng, norms=(0.0,)), another_seed(rng))
    played, found, seen = rehearsal.simulation, list[Floats](), 0
    members = range(min(max(experiment.cohort.size, simulation.mechanism.least_reports), simulation.federation.clients))
    for t in range(1, max(experiment.train.rounds, 2) + 1):
        played.state = type(played.state)(ones)
        if experiment.privacy.clipping == "adaptive":
            played.follow_clip(experiment.privacy.clip)
        number = t if experiment.privacy.randomness == "seeded" else 1
        collected = rehearsal.play(rehearsal.entry(number, members)).collected
        if collected is None:
            continue
        weights = collected.uploads.weights
        rows = as_rows(weights) if isinstance(collected.uploads, Stack) else as_row(weights)[None]
        found.append(rows.double().cpu().numpy())
        seen += found[-1].size
        if seen >= enough and len(found) > 1:
            break
    return found

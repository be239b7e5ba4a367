"""Correlated noise taken apart again."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedceo.audit.uploads import UploadAudit
from fedceo.audit.whitening import Whitening, Windows, column_findings
from fedceo.mechanisms.banded import correlated, factorise, server_response
from tests.support.run_faults import BANDED, simulation_of

COEFFICIENTS = factorise(server_response(0.0, 40), 4)


@pytest.mark.parametrize("rounds", [range(1, 41), [1, 2, 5, 6, 9, 20, 40], [9, 7, 8, 5, 10, 11]])
def test_what_was_mixed_comes_out_again(rounds: list[int]) -> None:
    """Whichever rounds are played, in whatever order, where the mechanism remembers the last three rounds."""
    whitening, rng = Whitening(COEFFICIENTS), np.random.default_rng(0)
    remembered: dict[int, dict[str, torch.Tensor]] = {}
    for t in rounds:
        fresh = rng.standard_normal(6)
        mixed = correlated({"w": torch.from_numpy(fresh)}, remembered, COEFFICIENTS, t)
        remembered = {s: z for s, z in remembered.items() if t - 3 < s < t} | {t: mixed}
        assert np.allclose(whitening.whiten(mixed["w"].numpy(), 0, t), fresh)


def test_scores_of_windows_have_the_noise_of_one_round_and_are_independent() -> None:
    rng, entries = np.random.default_rng(0), 20_000
    found: list[np.ndarray] = []
    windows = Windows(COEFFICIENTS, lambda scores, sent, coins: found.append(scores - sent))
    scored: list[np.ndarray] = []
    signals = Windows(COEFFICIENTS, lambda scores, sent, coins: scored.append(sent))
    for _ in range(2):
        windows.begin()
        remembered: dict[int, dict[str, torch.Tensor]] = {}
        for t in range(1, 13):
            fresh = {"w": torch.from_numpy(rng.standard_normal(entries))}
            remembered |= {t: correlated(fresh, remembered, COEFFICIENTS, t)}
            sent = np.full(entries, float(t))
            windows.add(remembered[t]["w"].numpy() + sent, sent, np.ones(1, dtype=bool), t)
            signals.add(remembered[t]["w"].numpy() + sent, sent, np.ones(1, dtype=bool), t)
        signals.begin()
    windows.close()
    assert len(found) == 6 and [float(sent[0]) for sent in scored] == pytest.approx([1, 5, 9] * 2)
    covariances = np.cov(np.stack(found))
    assert np.abs(covariances - np.eye(6)).max() < 5 / entries**0.5


@pytest.mark.parametrize(
    "coefficients, groups, passed",
    [
        (COEFFICIENTS, 4, [True, True]),
        (COEFFICIENTS, 3, [True, False]),
        (tuple(1.001 * c for c in COEFFICIENTS), 4, [False, True]),
    ],
)
def test_columns_that_are_long_or_overlap_are_found(
    coefficients: tuple[float, ...], groups: int, passed: list[bool]
) -> None:
    assert [finding.passed for finding in column_findings(coefficients, groups)] == passed


@pytest.mark.parametrize("factor, refuted", [(1.0, False), (2.0, True)])
def test_canaries_find_an_update_in_all_the_rounds_that_it_shows_in(factor: float, refuted: bool) -> None:
    """Coefficients twice as large leave half the noise; in single rounds neither is near the claim."""
    simulation = simulation_of(BANDED | {"cohort": {"sampling": "cyclic", "groups": 3}, "train": {"rounds": 9}})
    mechanism = simulation.mechanism
    simulation.mechanism = replace(mechanism, coefficients=tuple(factor * c for c in mechanism.coefficients))
    rng = np.random.default_rng(0)
    audit = UploadAudit(simulation, rng)
    samples = audit.play(1.0, 900).samples("released", rng)
    assert (samples.mu_bound(1e-4) > audit.claims["released"].mu) == refuted
    distance = samples.fallen.mean() - samples.out.mean()
    assert distance / samples.out.std() == pytest.approx(factor * audit.claims["released"].mu, rel=0.1)

"""Noise on a lattice: its exact law, updates that stay within the clip, results that are possible for every update."""

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import ndtri
from torch import Tensor

import fedceo
from fedceo.errors import UsageError
from fedceo.experiment.file import parse_experiment
from fedceo.mechanisms import lattice
from fedceo.mechanisms.base import MECHANISMS, Mechanism
from fedceo.mechanisms.lattice import FINENESS, MARGIN, on_lattice, rounded_normals
from fedceo.mechanisms.uploads import Contribution, Senders
from fedceo.training.schedule import Schedule
from tests.support.small_runs import TABLE, changed

CLIP, SIGMA, K, D = 2.0, 1.5, 4, 5000


def check_law(drawn: np.ndarray[Any, Any], scale: float) -> None:
    """A chi-square test against the probabilities of a rounded normal, from SciPy's distribution function."""
    reach = max(1, int(3 * scale))
    edges = np.arange(-reach, reach) + 0.5
    probabilities = np.diff(np.concatenate([[0.0], stats.norm.cdf(edges / scale), [1.0]]))
    found = np.bincount(np.searchsorted(edges, drawn), minlength=len(probabilities))
    assert stats.chisquare(found, probabilities * len(drawn)).pvalue > 1e-6


@pytest.mark.parametrize("scale", [0.3, 1.5, 20.0])
@pytest.mark.parametrize("system", [False, True])
def test_rounded_normals_have_the_law_of_rounded_normals(scale: float, system: bool) -> None:
    generator = Schedule(1, "system" if system else "seeded").generator("upload noise")
    drawn = rounded_normals(200_000, scale, generator)
    assert np.array_equal(drawn, np.rint(drawn))
    check_law(drawn, scale)


def test_a_sum_of_rounded_shares_has_the_law_of_one_blurred_normal() -> None:
    """D16: exact probabilities by convolution against the density of sqrt(R) s z + u_1 + ... + u_R at whole numbers."""
    scale, shares, reach = 1.5, 4, 40
    edges = np.arange(-reach, reach + 2) - 0.5
    one = np.diff(stats.norm.cdf(edges / scale))
    total = one
    for _ in range(shares - 1):
        total = np.convolve(total, one)
    x, step = np.linspace(-60, 60, 240_001, retstep=True)
    blurred = stats.norm.pdf(x, scale=scale * shares**0.5)
    for _ in range(shares):  # a running mean over [-1/2, 1/2]
        summed = np.concatenate([[0.0], np.cumsum((blurred[1:] + blurred[:-1]) / 2)]) * step
        blurred = np.interp(x + 0.5, x, summed) - np.interp(x - 0.5, x, summed)
    at_whole = blurred[np.round((np.arange(-20, 21) - x[0]) / step).astype(int)]
    middle = len(total) // 2
    # what Poisson's formula leaves out is e^(-pi^2 s^2 / 2) for each share: 1.5e-5 here, nothing at s = 2^20
    assert np.abs(total[middle - 20 : middle + 21] - at_whole).max() < 1e-6
    assert np.abs(total[middle - 20 : middle + 21] - stats.norm.pdf(np.arange(-20, 21), scale=3.0)).max() > 1e-3


def test_where_float64_is_not_sure_256_bits_decide_and_the_law_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattice, "MARGIN", 0.2)  # most draws are then undecided
    check_law(rounded_normals(4_000, 1.5, np.random.default_rng(2)), 1.5)


def test_the_margin_is_far_above_the_error_of_the_inverse() -> None:
    tails = np.concatenate([2.0 ** -np.arange(1.001, 24), np.random.default_rng(0).uniform(1e-7, 0.5, 300)])
    with mpmath.workprec(200):
        exact = [mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(float(tail))) for tail in tails]
        errors = [abs(float(-ndtri(tail) - z)) / (1 + float(z)) for tail, z in zip(tails, exact, strict=True)]
        # what the bits that were not drawn could still change: an interval of 2^-64 over the density
        unknown = [2.0**-64 / float(mpmath.npdf(z)) / (1 + float(z)) for z in exact]
    assert max(errors) < MARGIN / 100 and max(unknown) < MARGIN


def test_normals_far_out_are_possible() -> None:
    class Lowest:
        def bytes(self, length: int) -> bytes:
            return bytes(length)

    far = rounded_normals(2, FINENESS, Lowest())  # type: ignore[arg-type]
    assert np.all(np.abs(far) > 12 * FINENESS) and np.all(np.isfinite(far))


@pytest.mark.parametrize("length", [0.0, 1e-9, 1.0, CLIP, 1e6])
def test_no_update_is_longer_than_the_clip(length: float) -> None:
    torch.manual_seed(0)
    rows = torch.randn(K, D, dtype=torch.float64)
    rows[0] = 1.0  # all entries alike
    rows[1, 1:] = 0.0  # one entry alone
    rows *= length / rows.norm(dim=1, keepdim=True)
    for step in (1e-6, 0.01, 0.3):
        whole = on_lattice({"w": rows.float()}, CLIP, step)
        assert np.array_equal(whole, np.trunc(whole))
        norms = [sum(int(k) ** 2 for k in row) ** 0.5 * step for row in whole]
        assert max(norms) <= CLIP
        assert np.all(np.abs(whole * step) <= np.abs(rows.float().double().numpy()) * (1 + 1e-12))


def mechanism(kind: str, **changes: Any) -> Mechanism:
    settings = {"clip": CLIP, "noise_multiplier": SIGMA, "schedule": Schedule(0), "noise_kind": "lattice"}
    made: Mechanism = MECHANISMS[kind](**(settings | {"min_reports": K, "divisor": float(K)} | changes))
    return made


def moved(kind: str, updates: Tensor, round_: int = 1) -> Tensor:
    """What uploads, or their mean, add to weights of zero; updates: (K, D) in float64."""
    start = {"w": torch.zeros_like(updates)}
    senders = Senders(round_, tuple(range(K)), torch.ones(K))
    return mechanism(kind).privatise(Contribution(start, {"w": updates}), senders, {"w": start["w"][0]}).weights["w"]


@pytest.mark.parametrize("kind", ["distributed", "central"])
def test_every_result_is_a_whole_number_of_steps_whatever_the_update(kind: str) -> None:
    """Then no result tells one update from another by being impossible for it."""
    torch.manual_seed(1)
    shares = K**0.5 if kind == "distributed" else 1.0
    step = SIGMA * CLIP / shares / FINENESS / (1.0 if kind == "distributed" else K)
    for scale in (0.0, 1e-7, 1.0):
        found = moved(kind, scale * torch.randn(K, D, dtype=torch.float64)) / step
        assert float((found - found.round()).abs().max()) < 1e-6 * float(found.abs().max()) * 1e-6
    plain = mechanism(kind, noise_kind="gaussian")
    start = torch.zeros(K, D, dtype=torch.float64)
    senders = Senders(1, tuple(range(K)), torch.ones(K))
    bare = plain.privatise(Contribution({"w": start}, {"w": start}), senders, {"w": start[0]}).weights["w"] / step
    assert float((bare - bare.round()).abs().max()) > 0.4, "which noise in floating point is not"


@pytest.mark.parametrize("kind", ["distributed", "central"])
def test_the_noise_has_the_size_and_independence_that_was_asked(kind: str) -> None:
    updates = torch.zeros(K, D, dtype=torch.float64)
    std = SIGMA * CLIP / (K**0.5 if kind == "distributed" else K)
    rows = torch.cat([moved(kind, updates, t).reshape(-1, D) for t in (1, 2, 3)]) / std
    for row in rows:
        assert 1e-7 < stats.chi2.cdf(float(row.square().sum()), D) < 1 - 1e-7
        assert stats.kstest(row.numpy(), "norm").pvalue > 1e-7
    assert float((torch.corrcoef(rows) - torch.eye(len(rows))).abs().max()) * D**0.5 < 6


def test_rounding_costs_less_than_the_noise_by_far() -> None:
    torch.manual_seed(2)
    updates = torch.randn(K, D, dtype=torch.float64)
    updates *= CLIP / 2 / updates.norm(dim=1, keepdim=True)
    step = SIGMA * CLIP / FINENESS
    assert float((torch.from_numpy(on_lattice({"w": updates}, CLIP, step)) * step - updates).abs().max()) <= step


def test_a_run_with_lattice_noise_has_the_epsilons_of_gaussian_noise() -> None:
    runs = {
        kind: fedceo.run(changed(privacy={"noise": kind, "clipping": "adaptive"})) for kind in ("gaussian", "lattice")
    }
    rows = {kind: [row["epsilon"] for row in run.result["privacy"]] for kind, run in runs.items()}
    assert rows["gaussian"] == rows["lattice"]
    one, other = (run.weights["input.weight"] for run in runs.values())
    assert not torch.equal(one, other) and bool(other.isfinite().all())


def test_where_there_is_no_noise_on_updates_there_is_no_lattice() -> None:
    record = {"mechanism": "record", "noise_multiplier": 1.0, "noise": "lattice"}
    with pytest.raises(UsageError, match=r'privacy\.noise "lattice" is of updates'):
        parse_experiment(TABLE | {"privacy": record, "method": {"name": "fedavg"}})

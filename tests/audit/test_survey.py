"""The survey of a run: nothing to find in ours, and everything that is planted in its mechanism is found."""

import numpy as np
import pytest

from fedceo.audit.findings import Finding, count_finding, normal_finding, product_limit, variance_finding
from fedceo.audit.residuals import Residuals, deficit_found
from fedceo.audit.survey import Survey, ruler
from fedceo.mechanisms.base import Mechanism
from fedceo.simulation.rounds import Simulation
from tests.support.planted_faults import FAULTS, SUBTLE_FAULTS, Fault
from tests.support.run_faults import simulation_of

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def survey(broken: Simulation, seed: int = 0) -> list[Finding]:
    return Survey(broken, np.random.default_rng(seed)).findings()


def check(
    fault: Fault | None = None, kind: str = "distributed", randomness: str = "seeded", seed: int = 0
) -> list[Finding]:
    made = simulation_of({"privacy": {"mechanism": kind, "randomness": randomness}, "train": {"rounds": 30}}, seed)
    if fault is not None:
        made.mechanism = fault(made.mechanism)
    return survey(made, seed)


def failed(findings: list[Finding]) -> set[str]:
    return {finding.check for finding in findings if not finding.passed}


@pytest.mark.parametrize("kind", ["distributed", "central"])
def test_ours_passes_where_a_large_model_is_called_in_chunks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedceo.audit.survey.CHUNK_ENTRIES", 20_000)
    findings = check(None, kind)
    assert not failed(findings), findings


@pytest.mark.parametrize("randomness", ["seeded", "system"])
@pytest.mark.parametrize("kind", ["distributed", "central"])
def test_ours_passes(kind: str, randomness: str) -> None:
    findings = check(None, kind, randomness)
    assert not failed(findings), findings
    assert {
        "variance", "correlation", "normality", "bias", "clipping", "freshness", "values", "released variance",
        "release", "leak",
    } <= {f.check for f in findings}  # fmt: skip


@pytest.mark.parametrize("name", [*FAULTS, *SUBTLE_FAULTS])
def test_every_fault_is_found(name: str) -> None:
    assert failed(check((FAULTS | SUBTLE_FAULTS)[name]))


@pytest.mark.parametrize("name", ["no noise", "half noise", "repeated between rounds"])
def test_central_faults_are_found(name: str) -> None:
    assert failed(check(FAULTS[name], "central"))


@pytest.mark.parametrize(
    "name, checks",
    [
        ("no noise", {"variance", "correlation", "normality", "freshness", "values"}),
        ("shared between clients", {"correlation", "freshness"}),
        ("repeated between rounds", {"correlation", "freshness"}),
        ("bfloat16 noise", {"values"}),
        ("bfloat16 uploads", {"values"}),
        ("float16 noise", {"values"}),
        ("no clipping", {"clipping"}),
    ],
)
def test_findings_name_the_fault(name: str, checks: set[str]) -> None:
    """Other checks may fail as well."""
    assert checks <= failed(check((FAULTS | SUBTLE_FAULTS)[name]))


def test_bfloat16_uploads_have_a_handful_of_values() -> None:
    values = next(f for f in check(SUBTLE_FAULTS["bfloat16 uploads"]) if f.check == "values")
    assert values.measured < 0.01


@pytest.mark.parametrize("kind", ["distributed", "central"])
@pytest.mark.parametrize("factor, found", [(1.0, set()), (0.0, {"count"}), (0.7, {"count"})])
def test_the_noise_of_adaptive_clippings_count_is_checked(
    kind: str, factor: float, found: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Mechanism.drawn_count_noise
    monkeypatch.setattr(Mechanism, "drawn_count_noise", lambda self, *args: factor * ours(self, *args))
    privacy = {"mechanism": kind, "clipping": "adaptive", "count_noise": 2.0}
    assert failed(survey(simulation_of({"privacy": privacy, "train": {"rounds": 30}}))) == found


def rows_of(noise: Floats, sizes: list[int]) -> Residuals:
    """One round of such rows, with updates that have nothing to do with them."""
    residuals, rng = Residuals(sizes, np.random.default_rng(101)), np.random.default_rng(102)
    signals = [rng.standard_normal((1, noise.shape[1])) for _ in noise]
    beyond = [np.array([k % 2 == 0]) for k in range(len(noise))]
    residuals.add(noise, signals, beyond, 0, 1, range(len(noise)), range(len(noise)))
    return residuals


@pytest.mark.parametrize("entries, repetitions", [(40, 2), (1000, 20)])
def test_no_false_alarm(entries: int, repetitions: int) -> None:
    for seed in range(repetitions):
        noise = np.random.default_rng(seed).standard_normal((10, entries))
        findings = rows_of(noise, [entries - 8, 8]).findings()
        assert not failed(findings), findings


def test_noise_of_the_right_size_but_another_shape_is_found() -> None:
    uniform = np.random.default_rng(0).uniform(-(3**0.5), 3**0.5, (4, 5000))
    assert failed(rows_of(uniform, [5000]).findings()) == {"normality"}


def test_noise_that_two_tensors_share_is_found_however_small_they_are() -> None:
    noise = np.random.default_rng(0).standard_normal((400, 60))
    noise[:, 50:] = noise[:, :10]
    assert failed(rows_of(noise, [50, 10]).findings()) == {"within"}


def test_a_tenth_of_the_noise_that_all_share_is_found() -> None:
    rng = np.random.default_rng(0)
    noise = np.sqrt(0.9) * rng.standard_normal((50, 1000)) + np.sqrt(0.1) * rng.standard_normal(1000)
    assert {"sums", "lags"} <= failed(rows_of(noise, [1000]).findings())


@pytest.mark.parametrize("rounds", [3, 4, 10, 60, 299, 300, 1000])
def test_every_distance_of_rounds_is_on_the_ruler(rounds: int) -> None:
    marks = ruler(rounds)
    assert {b - a for a in marks for b in marks if b > a} == set(range(1, rounds))
    assert marks[0] == 1 and marks[-1] == rounds and len(marks) <= 3 * rounds**0.5 + 2


def test_limits_hold_and_are_not_far_from_what_chance_does() -> None:
    rng = np.random.default_rng(0)
    sums = np.einsum("nd,nd->n", rng.standard_normal((20_000, 50)), rng.standard_normal((20_000, 50)))
    assert np.abs(sums).max() < product_limit(50, 1, 20_000) < 3 * np.abs(sums).max()
    assert normal_finding("z", rng.standard_normal(100_000), "").passed
    assert not normal_finding("z", np.array([9.0]), "").passed
    squares = rng.chisquare(7.0, 10_000)
    assert variance_finding("v", squares, np.full(10_000, 7.0)).passed
    assert not variance_finding("v", np.append(squares, 700 * 1.7), np.append(np.full(10_000, 7.0), 700)).passed
    counts = [(float(n), 1000.0, 0.3) for n in rng.binomial(1000, 0.3, 1000)]
    assert count_finding("c", counts, "").passed and not count_finding("c", [*counts, (450.0, 1000.0, 0.3)], "").passed


def test_the_deficit_that_is_promised_is_found() -> None:
    rng = np.random.default_rng(0)
    for rows, entries in ((10, 400), (100, 1000)):
        weak = (1 - deficit_found(rows * entries)) * rng.standard_normal((rows, entries))
        assert "variance" in failed(rows_of(weak, [entries]).findings())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FAULTS, *SUBTLE_FAULTS])
def test_every_fault_is_found_ten_times(name: str) -> None:
    assert all(failed(check((FAULTS | SUBTLE_FAULTS)[name], seed=seed)) for seed in range(10))

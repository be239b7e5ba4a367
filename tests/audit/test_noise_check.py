"""The mechanism taken as a function: nothing to find in ours, and everything that is planted is found."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedceo.audit.noise_check import Finding, check_mechanism, check_noise
from fedceo.mechanisms.base import MECHANISMS, Mechanism
from fedceo.training.schedule import Schedule
from tests.support.planted_faults import FAULTS, SUBTLE_FAULTS, Fault

K, CLIP, SIGMA = 10, 0.5, 1.5


def mechanism(kind: str = "distributed", randomness: str = "seeded", seed: int = 0) -> Mechanism:
    schedule = Schedule(seed, randomness)
    made: Mechanism = MECHANISMS[kind](CLIP, SIGMA, schedule, min_reports=K, divisor=float(K), step=0.7)
    return made


def check(made: Mechanism, entries: int = 4000, seed: int = 0) -> list[Finding]:
    rng = torch.Generator().manual_seed(1)
    weights = {"a": 0.1 * torch.randn(entries // 8, 7, generator=rng), "b": torch.randn(entries // 8, generator=rng)}
    std = SIGMA * CLIP / (K if made.shows_uploads else 1) ** 0.5
    return check_mechanism(made, weights, K, clip=CLIP, std=std, rng=np.random.default_rng(seed))


def failed(findings: list[Finding]) -> set[str]:
    return {finding.check for finding in findings if not finding.passed}


@pytest.mark.parametrize("randomness", ["seeded", "system"])
@pytest.mark.parametrize("kind", ["distributed", "central"])
def test_the_librarys_mechanism_passes(kind: str, randomness: str) -> None:
    findings = check(mechanism(kind, randomness))
    assert not failed(findings), findings
    assert {f.check for f in findings} == {
        "variance", "correlation", "normality", "bias", "clipping", "freshness", "values",
    }  # fmt: skip


@pytest.mark.parametrize("name", [*FAULTS, *SUBTLE_FAULTS])
def test_every_fault_is_found(name: str) -> None:
    fault: Fault = (FAULTS | SUBTLE_FAULTS)[name]
    assert failed(check(fault(mechanism())))


@pytest.mark.parametrize("name", ["no noise", "half noise", "repeated between rounds"])
def test_central_faults_are_found(name: str) -> None:
    assert failed(check(FAULTS[name](mechanism("central"))))


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
    assert checks <= failed(check((FAULTS | SUBTLE_FAULTS)[name](mechanism()), entries=8000))


def test_bfloat16_uploads_have_a_handful_of_values() -> None:
    values = next(f for f in check(SUBTLE_FAULTS["bfloat16 uploads"](mechanism())) if f.check == "values")
    assert values.measured < 0.01


@pytest.mark.parametrize("entries, repetitions", [(40, 2), (1000, 20)])
def test_no_false_alarm(entries: int, repetitions: int) -> None:
    for seed in range(repetitions):
        findings = check(mechanism(seed=seed), entries, seed)
        assert not failed(findings), findings


def test_noise_of_the_right_size_but_another_shape_is_found() -> None:
    uniform = np.random.default_rng(0).uniform(-(3**0.5), 3**0.5, (4, 5000))
    assert failed(check_noise(uniform, 1.0, [5000])) == {"normality"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FAULTS, *SUBTLE_FAULTS])
def test_every_fault_is_found_ten_times(name: str) -> None:
    fault: Fault = (FAULTS | SUBTLE_FAULTS)[name]
    assert all(failed(check(fault(mechanism(seed=seed)), seed=seed)) for seed in range(10))


@pytest.mark.parametrize("kind", ["distributed", "central"])
@pytest.mark.parametrize("factor, found", [(1.0, set()), (0.0, {"count"}), (0.7, {"count"})])
def test_the_noise_of_adaptive_clippings_count_is_checked(
    kind: str, factor: float, found: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = replace(
        mechanism(kind), clipping="adaptive", count_noise=2.0, min_reports=5, noise_multiplier=SIGMA / 2**0.5
    )
    ours = Mechanism.drawn_count_noise
    monkeypatch.setattr(Mechanism, "drawn_count_noise", lambda self, *args: factor * ours(self, *args))
    assert failed(check(made if kind == "distributed" else replace(made, noise_multiplier=SIGMA))) == found

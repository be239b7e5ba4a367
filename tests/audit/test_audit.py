"""The audit passes what is right and refutes what is broken, in every regime."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedceo.audit.report import Report, audit
from fedceo.errors import UsageError
from fedceo.experiment.file import parse_experiment
from fedceo.experiment.method_table import known_methods, settings_of
from fedceo.simulation.preparing import prepare
from fedceo.simulation.rounds import Simulation
from fedceo.training import loop
from fedceo.training.batched.chain import Chain
from fedceo.training.noise import RecordNoise
from tests.support.audited_runs import FEDAVG, ROUNDS, K, refuted_views, simulation
from tests.support.planted_faults import (
    FAULTS,
    ClipEachTensor,
    RepeatedEveryRound,
    SharedBetweenClients,
    copy,
    leak_personal_models,
)
from tests.support.small_federation import SmallConv, federation

OWN = {"name": "fedceo", "interval": 5, "strength": 20.0, "restart": "own"}


def test_a_model_on_fixed_features_is_audited() -> None:
    table = {
        "data": {"name": "digits", "clients": 12},
        "model": {"name": "scattering"},
        "cohort": {"size": K},
        "train": {"rounds": 20, "local_epochs": 1, "batch_size": 64},
        "privacy": {"mechanism": "central", "noise_multiplier": 1.0, "clip": 0.5},
        "method": FEDAVG,
    }
    report = audit(prepare(parse_experiment(table)), rounds=60)
    assert not report.refuted, [finding for finding in report.findings if not finding.passed]


CHECKS = {
    "variance", "entries", "normality", "bias", "clipping", "clients", "memory", "correlation", "lags", "sums",
    "within", "released variance", "released bias", "released clipping", "released memory", "released correlation",
    "release", "leak", "freshness", "values", "cohort sizes", "cohort members", "cohort overlaps", "absences", "keys",
}  # fmt: skip


def failed_checks(report: Report) -> set[str]:
    return {finding.check for finding in report.findings if not finding.passed}


def untestable_views(report: Report) -> set[str]:
    return {view.view for view in report.views if view.verdict == "not testable"}


RIGHT: dict[str, Callable[[int], Simulation]] = {
    "distributed": lambda seed: simulation(seed=seed),
    "distributed, fewer reports": lambda seed: simulation(seed=seed, min_reports=6),
    "distributed, system randomness": lambda seed: simulation(seed=seed, randomness="system"),
    "distributed, Poisson": lambda seed: simulation(seed=seed, cohort={"sampling": "poisson"}),
    "distributed, little noise": lambda seed: simulation(seed=seed, sigma=0.1),
    "central": lambda seed: simulation("central", seed=seed),
    "FedCEO, own": lambda seed: simulation(method=OWN, seed=seed),
    "FedCEO, mean": lambda seed: simulation(method=OWN | {"restart": "mean"}, seed=seed),
    "FedCEO, slot": lambda seed: simulation(method=OWN | {"restart": "slot"}, seed=seed),
    "FedCEO, stored": lambda seed: simulation(method=OWN | {"restart": "stored"}, seed=seed),
    "record": lambda seed: simulation("record", sigma=0.8, seed=seed),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_simulation_passes(name: str) -> None:
    report = audit(RIGHT[name](0), rounds=40, seed=1)
    assert not report.refuted, report
    assert all(view.bound <= 1.2 * view.claim for view in report.views)


@pytest.mark.parametrize("name", FAULTS)
def test_the_canaries_find_every_fault(name: str) -> None:
    broken = simulation()
    broken.mechanism = FAULTS[name](broken.mechanism)
    report = audit(broken, rounds=ROUNDS, seed=1)
    assert report.refuted and refuted_views(report)
    if name == "shared between clients":
        assert refuted_views(report) == {"upload - peer"}
    if name == "repeated between rounds":
        assert "upload - previous" in refuted_views(report)


@pytest.mark.parametrize("name, views", [
    ("no noise", {"released", "mean - previous"}),
    ("half noise", {"released"}),
    ("repeated between rounds", {"mean - previous"}),
])  # fmt: skip
def test_central_faults(name: str, views: set[str]) -> None:
    broken = simulation("central")
    broken.mechanism = FAULTS[name](broken.mechanism)
    assert views <= refuted_views(audit(broken, rounds=300, seed=1))


def test_a_leak_in_personal_models_shows_in_what_clients_are_given() -> None:
    broken = simulation(method=OWN)
    leak_personal_models(broken)
    report = audit(broken, rounds=2 * ROUNDS, seed=1)
    assert "returned" in refuted_views(report) <= {"returned", "returned to others"}
    assert failed_checks(report) and failed_checks(report) <= {"release", "leak"}


def test_clipping_each_tensor_by_itself_is_found_by_canaries_alone() -> None:
    broken = simulation()
    broken.mechanism = copy(broken.mechanism, ClipEachTensor)
    assert refuted_views(audit(broken, rounds=2 * ROUNDS, seed=1))


def test_claims_come_from_the_experiment_not_from_the_mechanism() -> None:
    miswired = simulation()
    miswired.mechanism = replace(miswired.mechanism, noise_multiplier=0.5)
    report = audit(miswired, rounds=ROUNDS, seed=1)
    assert {"released", "upload"} <= refuted_views(report)
    assert {view.view: view.claim for view in report.views}["released"] == pytest.approx(1.0)


def half_noise(noise: RecordNoise, step: int, size: int) -> Tensor:
    return DRAW(noise, step, size) / 2


def no_noise(noise: RecordNoise, step: int, size: int) -> Tensor:
    return torch.zeros_like(DRAW(noise, step, size))


def same_in_every_step(noise: RecordNoise, step: int, size: int) -> Tensor:
    """The generators' first draw, however often they are asked."""
    kinds = [type(generator.bit_generator) for generator in noise.generators]
    seeds = [generator.bit_generator.seed_seq for generator in noise.generators]
    fresh = object.__new__(RecordNoise)
    fresh.__dict__ |= noise.__dict__
    fresh.generators = [
        np.random.Generator(kind(cast(np.random.SeedSequence, seed))) for kind, seed in zip(kinds, seeds, strict=True)
    ]
    return DRAW(fresh, step, size)


def break_training(monkeypatch: pytest.MonkeyPatch, name: str, broken: Simulation) -> None:
    schedules = {"shared between clients": SharedBetweenClients, "repeated between rounds": RepeatedEveryRound}
    if name in schedules:
        broken.schedule = schedules[name](broken.schedule.seed)
        broken.context = replace(broken.context, schedule=broken.schedule)
    elif name == "no clipping":
        monkeypatch.setattr(loop, "clipped_sum", lambda g, present, clip: {n: v.sum(0) for n, v in g.items()})
        right = Chain.gradient
        monkeypatch.setattr(Chain, "gradient", lambda self, w, x, clips, *rest: right(self, w, x, clips * 1e9, *rest))
    else:
        monkeypatch.setattr(RecordNoise, "draw", TRAINING_FAULTS[name])


DRAW = RecordNoise.draw
TRAINING_FAULTS: dict[str, Any] = {
    "no noise": no_noise,
    "half noise": half_noise,
    "same noise in every step": same_in_every_step,
    "no clipping": None,
    "shared between clients": None,
    "repeated between rounds": None,
}


@pytest.mark.parametrize("name, engine", [*((name, "batched") for name in TRAINING_FAULTS), ("no clipping", "loop")])
def test_record_faults(name: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = simulation("record", sigma=0.8, engine=engine)
    break_training(monkeypatch, name, broken)
    report = audit(broken, rounds=200 if name == "half noise" else 80, seed=1)
    assert report.refuted
    if name in ("no noise", "half noise", "no clipping"):
        assert "step" in refuted_views(report)
    if name == "shared between clients":
        assert refuted_views(report) == {"step - peer"}
    if name == "repeated between rounds":
        assert "step - previous" in refuted_views(report)


def test_nothing_to_audit_is_refused_in_a_line() -> None:
    table = simulation().experiment.model_dump(exclude_none=True)
    table["privacy"] = {"mechanism": "none"}
    bare = Simulation(parse_experiment(table), federation((6,) * 12), SmallConv(), "small", 0.0)
    with pytest.raises(UsageError, match=r"^privacy\.mechanism: .*$"):
        audit(bare)
    with pytest.raises(UsageError, match=r"^privacy\.noise_multiplier: .*$"):
        audit(simulation(sigma=0.0))
    with pytest.raises(UsageError, match=r"^rounds: 0"):
        audit(simulation(), rounds=0)


def test_a_model_with_randomness_of_its_own_is_refused_under_record() -> None:
    class Noisy(SmallConv):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(nn.functional.dropout(x, 0.5, self.training))

    with pytest.raises(UsageError, match=r"^model: "):
        audit(simulation("record", model=Noisy(), engine="loop"), rounds=1)


def test_too_few_rounds_are_said_to_be_too_few() -> None:
    report = audit(simulation(), rounds=4, seed=1)
    assert not report.refuted and untestable_views(report) == {view.view for view in report.views}


def test_claims_too_large_for_the_samples_are_tested_by_a_share_of_the_clip() -> None:
    broken = simulation(sigma=0.1)
    broken.mechanism = FAULTS["half noise"](broken.mechanism)
    report = audit(broken, rounds=ROUNDS, seed=1)
    upload = next(view for view in report.views if view.view == "upload")
    assert upload.claim == pytest.approx(K**0.5 / 0.1) and upload.share < 0.1
    assert upload.verdict == "refuted" and upload.bound > upload.claim


def test_the_report_is_plain_data_and_the_simulation_stays_as_it_was() -> None:
    audited = simulation(method=OWN)
    before = {name: w.clone() for name, w in audited.state.weights.items()}
    report = audit(audited, rounds=20, seed=1)
    assert all(torch.equal(before[name], w) for name, w in audited.state.weights.items())
    assert not audited.state.personal and audited.round == 0
    plain = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert plain["refuted"] is False and len(plain["views"]) == 6
    assert {finding["check"] for finding in plain["findings"]} == CHECKS
    assert 0 < plain["power"]["noise_deficit"] < 0.1
    assert set(plain["power"]["epsilons"]) == {"outsider", "server", "client"}
    assert any("floating-point" in words for words in plain["not_covered"])
    assert audited.ledger.entries == [] and audited.on_outcome is None
    assert audit(audited, rounds=20, seed=1).as_dict() == report.as_dict(), "the same seed, the same report"


def test_cohorts_of_one() -> None:
    report = audit(simulation(cohort={"size": 1}), rounds=ROUNDS, seed=1)
    assert not report.refuted and "upload - peer" not in {view.view for view in report.views}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_refuted_ten_times(name: str) -> None:
    for seed in range(10):
        broken = simulation(seed=seed)
        broken.mechanism = FAULTS[name](broken.mechanism)
        assert refuted_views(audit(broken, rounds=ROUNDS))


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINING_FAULTS)
def test_every_record_fault_is_refuted_ten_times(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(10):
        broken = simulation("record", sigma=0.8, seed=seed)
        break_training(monkeypatch, name, broken)
        assert audit(broken, rounds=40).refuted


@pytest.mark.slow
def test_the_leak_in_personal_models_is_refuted_ten_times() -> None:
    for seed in range(10):
        broken = simulation(method=OWN, seed=seed)
        leak_personal_models(broken)
        assert "returned" in refuted_views(audit(broken, rounds=2 * ROUNDS)) <= {"returned", "returned to others"}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_simulation_passes_ten_times(name: str) -> None:
    for seed in range(10):
        report = audit(RIGHT[name](seed), rounds=60)
        assert not report.refuted, report


@pytest.mark.parametrize("mechanism", ["distributed", "central"])
@pytest.mark.parametrize("clipping", ["per_layer", "adaptive"])
def test_every_way_of_clipping_keeps_its_word(clipping: str, mechanism: str) -> None:
    assert not audit(simulation(mechanism, clipping=clipping), rounds=40, seed=1).refuted


def audited_at_user_level(name: str) -> bool:
    """Methods that release counts are not for whole clients; tests/audit/test_counts.py has them."""
    settings = settings_of(name).model_validate({})
    return settings.refused_by_audit is None and settings.counts is None


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in known_methods() if audited_at_user_level(name)])
def test_every_method_keeps_its_word(name: str) -> None:
    """Canaries go through what the method sends, personal parts apart."""
    made = simulation(method={"name": name})
    assert not audit(made, rounds=200, seed=1).refuted

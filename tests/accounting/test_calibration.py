"""The specification's calibration table (N=100, K=10, T=300, delta=1e-5), and targets that cannot be met."""

from typing import Any

import pytest

from fedceo.accounting.calibration import calibrate
from fedceo.accounting.rows import Spec, account
from fedceo.errors import UsageError

TARGETS = (1, 2, 4, 8, 10)


def spec(mechanism: str = "distributed", sigma: float = 1.0, **fields: Any) -> Spec:
    plan = {"clients": 100, "cohort": 10, "rounds": 300, "delta": 1e-5, **fields}
    return Spec(noise_multiplier=sigma, mechanism=mechanism, **plan)


def by_target(*wanted: float) -> list[tuple[float, float]]:
    return list(zip(TARGETS, wanted, strict=True))


def check(asked: Spec, observer: str, target: float, wanted: float) -> None:
    found = calibrate(target, observer, asked)
    assert found == pytest.approx(wanted, rel=0.01)
    epsilons = []
    for sigma in (found, found * 0.999):
        given = {**vars(asked), "noise_multiplier": sigma}
        epsilons += [next(row.epsilon for row in account(Spec(**given)) if row.observer == observer)]
    assert epsilons[0] <= target < epsilons[1]


@pytest.mark.parametrize("target, wanted", by_target(6.60, 3.61, 2.07, 1.286, 1.13))
def test_poisson(target: float, wanted: float) -> None:
    check(spec("central", sampling="poisson"), "outsider", target, wanted)


@pytest.mark.parametrize("target, wanted", by_target(7.95, 4.85, 3.17, 2.20, 1.98))
def test_fixed_size_zero_out(target: float, wanted: float) -> None:
    check(spec(), "outsider", target, wanted)


@pytest.mark.parametrize("target, wanted", by_target(13.7, 7.65, 4.48, 2.81, 2.46))
def test_fixed_size_replace_one(target: float, wanted: float) -> None:
    check(spec(adjacency="replace-one"), "outsider", target, wanted)


@pytest.mark.parametrize("target, wanted", by_target(87, 46, 25, 13.9, 11.6))
def test_server(target: float, wanted: float) -> None:
    check(spec(participation_cap=54), "server", target, wanted)


@pytest.mark.parametrize("target, wanted", by_target(173, 93, 50, 27.9, 23.2))
def test_server_replace_one(target: float, wanted: float) -> None:
    check(spec(participation_cap=54, adjacency="replace-one"), "server", target, wanted)


@pytest.mark.parametrize(
    "clients, cohort, wanted", [(1_000, 100, 1.29), (10_000, 100, 0.51), (10_000, 1_000, 1.29), (90_000, 900, 0.51)]
)
def test_large_federations(clients: int, cohort: int, wanted: float) -> None:
    check(spec("central", sampling="poisson", clients=clients, cohort=cohort), "outsider", 8, wanted)


def test_client_and_participant_and_records() -> None:
    personal = spec(release="personalised", interval=15)
    outsider = calibrate(8, "outsider", spec())
    assert outsider < calibrate(8, "participant", spec()) < calibrate(8, "client", personal)
    records = spec("record", record_rate=1 / 7, record_steps=210, participations=1)
    assert calibrate(15.16, "outsider", records) == pytest.approx(1.0, rel=0.01)


def test_noise_of_the_spec_does_not_matter() -> None:
    assert calibrate(8, "outsider", spec(sigma=0.0)) == calibrate(8, "outsider", spec(sigma=50.0))


def test_loose_targets_need_hardly_any_noise() -> None:
    assert calibrate(1e7, "outsider", spec()) == 0.01


@pytest.mark.parametrize(
    "target, observer, asked, words",
    [
        (1e-5, "server", spec(), "target_epsilon: 1e-05 .* no noise multiplier up to 10000 reaches"),
        (8, "server", spec("central"), "must be trusted"),
        (8, "outsider", spec("none"), "no mechanism"),
        (8, "client", spec(release="stored"), "single uploads are behind what is released"),
        (8, "client", spec(), "participant"),
        (8, "paper", spec(), "observer: 'paper'"),
        (8, "nobody", spec(), "expected one of outsider"),
        (0, "outsider", spec(), "target epsilon: 0"),
        (float("nan"), "outsider", spec(), "target epsilon: nan"),
    ],
)
def test_impossible_targets_are_refused(target: float, observer: str, asked: Spec, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        calibrate(target, observer, asked)

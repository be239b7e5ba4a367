"""The specification's calibration table (N=100, K=10, T=300, delta=1e-5), and targets that cannot be met."""

import pytest

from fedceo.accounting.calibration import calibrate
from fedceo.accounting.plan import Question, RecordSteps
from fedceo.errors import UsageError
from tests.support.privacy_questions import changed, epsilon, question

TARGETS = (1, 2, 4, 8, 10)


def solved(target: float, observer: str, asked: Question) -> float:
    return calibrate(target, observer, asked.plan, asked.realised)


def by_target(*wanted: float) -> list[tuple[float, float]]:
    return list(zip(TARGETS, wanted, strict=True))


def check(asked: Question, observer: str, target: float, wanted: float) -> None:
    found = solved(target, observer, asked)
    assert found == pytest.approx(wanted, rel=0.01)
    enough, too_little = (epsilon(changed(asked, noise_multiplier=sigma), observer) for sigma in (found, found * 0.999))
    assert enough <= target < too_little


@pytest.mark.parametrize("target, wanted", by_target(6.60, 3.61, 2.07, 1.286, 1.13))
def test_poisson(target: float, wanted: float) -> None:
    check(question(mechanism="central", sampling="poisson"), "outsider", target, wanted)


@pytest.mark.parametrize("target, wanted", by_target(7.95, 4.85, 3.17, 2.20, 1.98))
def test_fixed_size_zero_out(target: float, wanted: float) -> None:
    check(question(), "outsider", target, wanted)


@pytest.mark.parametrize("target, wanted", by_target(13.7, 7.65, 4.48, 2.81, 2.46))
def test_fixed_size_replace_one(target: float, wanted: float) -> None:
    check(question(adjacency="replace-one"), "outsider", target, wanted)


@pytest.mark.parametrize("target, wanted", by_target(87, 46, 25, 13.9, 11.6))
def test_server(target: float, wanted: float) -> None:
    check(question(participation_cap=54), "server", target, wanted)


@pytest.mark.parametrize("target, wanted", by_target(173, 93, 50, 27.9, 23.2))
def test_server_replace_one(target: float, wanted: float) -> None:
    check(question(participation_cap=54, adjacency="replace-one"), "server", target, wanted)


@pytest.mark.parametrize(
    "clients, cohort, wanted", [(1_000, 100, 1.29), (10_000, 100, 0.51), (10_000, 1_000, 1.29), (90_000, 900, 0.51)]
)
def test_large_federations(clients: int, cohort: int, wanted: float) -> None:
    check(question(mechanism="central", sampling="poisson", clients=clients, cohort=cohort), "outsider", 8, wanted)


def test_client_and_participant_and_records() -> None:
    personal = question(release="personalised", interval=15)
    outsider = solved(8, "outsider", question())
    assert outsider < solved(8, "participant", question()) < solved(8, "client", personal)
    records = question(mechanism="record", record_steps=(RecordSteps(1 / 7, 210),), participations=1)
    assert solved(15.16, "outsider", records) == pytest.approx(1.0, rel=0.01)


def test_noise_of_the_plan_does_not_matter() -> None:
    assert solved(8, "outsider", question(0.0)) == solved(8, "outsider", question(50.0))


def test_loose_targets_need_hardly_any_noise() -> None:
    assert solved(1e7, "outsider", question()) == 0.01


@pytest.mark.parametrize(
    "target, observer, asked, words",
    [
        (1e-5, "server", question(), "target_epsilon: 1e-05 .* no noise multiplier up to 10000 reaches"),
        (8, "server", question(mechanism="central"), "must be trusted"),
        (8, "outsider", question(mechanism="none"), "no mechanism"),
        (8, "client", question(release="stored"), "single uploads are behind what is released"),
        (8, "client", question(), "participant"),
        (8, "paper", question(), "observer: 'paper'"),
        (8, "nobody", question(), "expected one of outsider"),
        (0, "outsider", question(), "target epsilon: 0"),
        (float("nan"), "outsider", question(), "target epsilon: nan"),
    ],
)
def test_impossible_targets_are_refused(target: float, observer: str, asked: Question, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        solved(target, observer, asked)

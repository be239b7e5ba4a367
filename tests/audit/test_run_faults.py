"""The table of faults: each is planted in the code path that runs, and each is caught."""

import pytest

from fedceo.audit.report import audit
from tests.support.run_faults import ASKED, FURTHER, RIGHT, ROUNDS, RUN_FAULTS, found_by, simulation_of


def caught(name: str, seed: int) -> list[str]:
    with RUN_FAULTS[name].planted():
        return found_by(audit(simulation_of(RUN_FAULTS[name].settings, seed), rounds=ROUNDS, seed=seed))


def test_there_are_as_many_faults_as_were_asked_for() -> None:
    assert len(ASKED) == 21 and len(FURTHER) >= 10 and not ASKED.keys() & FURTHER.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, checks",
    [
        ("no noise in Stack's mean", {"released variance", "release"}),
        ("no noise in aggregation", {"leak", "released"}),
        ("one pair of 50 clients shares noise", {"correlation"}),
        ("one noise for every tensor", {"within"}),
        ("momentum added after the clip", {"memory"}),
        ("a neighbour's bare update in a returned model", {"leak"}),
        ("a control of all that is made of bare controls", {"leak"}),
        ("16-bit seeds", {"keys"}),
        ("shuffled instead of Poisson batches", {"batches"}),
        ("a head phase without noise", {"variance"}),
        ("two phases share noise", {"phases"}),
        ("two phases share noise in coordinates of records", {"phases"}),
        ("one band too many", {"lags", "variance"}),
        ("groups split anew in every cycle", {"cohort distances"}),
    ],
)
def test_findings_name_the_fault(name: str, checks: set[str]) -> None:
    """Others may fail as well."""
    assert checks <= set(caught(name, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN_FAULTS)
def test_every_fault_of_a_run_is_caught_ten_times(name: str) -> None:
    assert all(caught(name, seed) for seed in range(10))


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_no_false_alarm_in_ten_audits(name: str) -> None:
    """A hundred audits over all mechanisms."""
    for seed in range(10):
        report = audit(simulation_of(RIGHT[name], seed), rounds=ROUNDS)
        assert not found_by(report), report

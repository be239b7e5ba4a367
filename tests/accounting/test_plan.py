"""Plans, what was realised and local steps refuse bad input with the field that is wrong."""

import math
from typing import Any

import pytest

from fedceo.accounting.plan import Plan, Question, Realised, RecordSteps
from fedceo.errors import UsageError
from tests.support.privacy_questions import question


def test_left_out_means_as_planned() -> None:
    plan = Plan(100, 10, 30, 1.0, 1e-5, "distributed", release="personalised", interval=10, min_reports=8)
    asked = Question(plan)
    assert (asked.rounds, asked.smoothings, asked.most_participations) == (30, 3, 30)
    assert (asked.fewest_reports, asked.most_reports, asked.absence_tells) == (8, 0, False)
    realised = Realised(rounds=20, smoothings=1, reports=((8, 5), (9, 15)), random_absence=False, participations=7)
    asked = Question(plan, realised)
    assert (asked.rounds, asked.smoothings, asked.most_participations) == (20, 1, 7)
    assert (asked.fewest_reports, asked.most_reports, asked.absence_tells) == (8, 9, True)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"delta": 0.01}, "1/N"),
        ({"delta": 0.5}, "1/N"),
        ({"delta": 0.0}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"cohort": 101}, "more than the 100 clients"),
        ({"cohort": 0}, "cohort: 0"),
        ({"rounds": -1}, "rounds: -1"),
        ({"sigma": -1.0}, "noise_multiplier: -1"),
        ({"sigma": math.inf}, "noise_multiplier: inf"),
        ({"mechanism": "local"}, "expected one of central, distributed"),
        ({"sampling": "round-robin"}, "sampling"),
        ({"adjacency": "edit"}, "adjacency"),
        ({"release": "all"}, "release"),
        ({"release": "personalised"}, "interval"),
        ({"release": "personalised", "interval": 0}, "interval: 0"),
        ({"reports": ((11, 300),)}, "reports: 11"),
        ({"reports": ((0, 300),)}, "reports: 0"),
        ({"reports": ((7, 299),)}, "add up"),
        ({"reports": ((7, 300),), "min_reports": 8}, "expected 8 to 10"),
        ({"min_reports": 11}, "min_reports: 11"),
        ({"participation_cap": 0}, "participation_cap: 0"),
        ({"mechanism": "record"}, "record_rate"),
        ({"participations": -1}, "participations: -1"),
    ],
)
def test_bad_input_is_refused_with_its_field(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        question(**fields)


@pytest.mark.parametrize(
    "rate, steps, words",
    [
        (1.5, 1, "record_rate: 1.5"),
        (0.0, 1, "record_rate: 0.0"),
        (math.nan, 1, "record_rate: nan"),
        (0.5, 0, "record_steps: 0"),
    ],
)
def test_bad_local_steps_are_refused_with_their_field(rate: float, steps: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        RecordSteps(rate, steps)

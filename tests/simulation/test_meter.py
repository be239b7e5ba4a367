"""The epsilon so far, without the accountant in every round."""

from typing import Any

import pytest

import fedceo
from fedceo.accounting import rows as accounting
from fedceo.experiment.file import parse_experiment
from fedceo.simulation.meter import Meter
from fedceo.simulation.preparing import prepare
from tests.support.recorded_runs import TABLE


class Time:
    """A clock that is moved by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def watched(clock: Time, seconds_a_round: float, **privacy: Any) -> list[dict[str, Any]]:
    """The metrics of a run of 8 rounds as its meter shows them."""
    meter, seen = Meter(clock), []

    def on_round(record: dict[str, Any]) -> None:
        clock.now += seconds_a_round
        seen.append(meter.read(record))

    run = fedceo.run(
        TABLE | {"record": {}, "privacy": TABLE["privacy"] | privacy}, on_start=meter.begin, on_round=on_round
    )
    assert not any("epsilon" in record for record in run.history), "a run is the same whoever watches it"
    rows = [row for row in run.result["privacy"] if row["observer"] == run.experiment.privacy.observer]
    assert seen[-1].get("epsilon") == (rows[0]["epsilon"] if rows else None)
    return seen


@pytest.mark.parametrize("observer", ["outsider", "server"])
def test_epsilon_is_that_of_the_main_observer_and_grows(observer: str) -> None:
    """Every measured round has it, however quick rounds are."""
    seen = {
        record["round"]: record["epsilon"] for record in watched(Time(), 0.0, observer=observer) if "epsilon" in record
    }
    assert list(seen) == [2, 4, 6, 8]
    assert sorted(seen.values()) == list(seen.values()) and seen[2] < seen[8]


def test_the_accountant_is_asked_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that takes 2 s in rounds of 10 s, every second one measured: 5 % of the time and 2 s, and the last."""
    clock, answer = Time(), accounting.answer

    def slow(*arguments: Any) -> Any:
        clock.now += 2.0
        return answer(*arguments)

    monkeypatch.setattr(accounting, "answer", slow)
    rounds = [record["round"] for record in watched(clock, 10.0) if "epsilon" in record]
    assert rounds == [2, 4, 8]


def test_without_privacy_there_is_no_epsilon() -> None:
    meter = Meter(Time())
    meter.begin(prepare(parse_experiment(TABLE | {"privacy": {"mechanism": "none"}})))
    assert meter.read({"round": 8}) == {"round": 8}

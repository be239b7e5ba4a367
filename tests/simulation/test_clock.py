"""Where the time went: the parts are booked, fit into the whole, and survive a stop."""

import json
import time
from pathlib import Path

import pytest

import fedceo
from fedceo.errors import UsageError
from fedceo.simulation.clock import PARTS, Clock
from tests.support.edited_runs import take_checksums_out
from tests.support.recorded_runs import TABLE


def test_parts_add_up_even_when_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 2.0, 10.0, 13.0, 20.0, 21.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    clock = Clock()
    for part in ("training", "evaluation"):
        with clock.during(part):
            pass
    with pytest.raises(ZeroDivisionError), clock.during("training"):
        raise ZeroDivisionError
    assert clock.seconds == dict.fromkeys(PARTS, 0.0) | {"training": 3.0, "evaluation": 3.0}


def test_a_run_says_where_its_time_went(tmp_path: Path) -> None:
    result = fedceo.run(TABLE, out=tmp_path / "run").result
    parts = result["seconds_by_part"]
    assert set(parts) == set(PARTS) and min(parts.values()) > 0
    assert sum(parts.values()) <= result["seconds"]


def test_a_resumed_run_counts_what_went_before(tmp_path: Path) -> None:
    rounds = iter(range(1, 9))
    begun = fedceo.run(TABLE, out=tmp_path / "run", should_stop=lambda: next(rounds) == 4)
    before = begun.result["seconds_by_part"]
    after = fedceo.resume(tmp_path / "run").result["seconds_by_part"]
    assert all(after[part] > before[part] for part in PARTS)


def test_a_result_of_another_version_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = fedceo.run(TABLE, out=folder).result
    take_checksums_out(folder)
    for text, words in [
        (json.dumps({name: value for name, value in result.items() if name != "ended_early"}), "has no ended_early"),
        ("[]", "has no method"),
        ("{", "not a JSON file"),
    ]:
        (folder / "result.json").write_text(text)
        with pytest.raises(UsageError, match=words) as raised:
            fedceo.load(folder)
        assert "\n" not in str(raised.value)

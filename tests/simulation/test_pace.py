"""Time left follows from the steps taken, and a run tells of itself where nobody draws a bar."""

import logging
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedceo
from fedceo.accounting.printed import rounded_up
from fedceo.simulation import pace as told
from fedceo.simulation.pace import Pace, line_of, minutes
from fedceo.simulation.shown import as_html
from tests.support.small_runs import changed

SHORT = changed(train={"rounds": 4}, evaluation={"every": 2})


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.integers(0, 50), st.integers(2, 20), st.floats(0.01, 5000))
def test_time_left_of_equal_steps_is_exact_however_slow_the_first_was(before: int, taken: int, seconds: float) -> None:
    clock = Time()
    pace = Pace(before + 100, clock)
    assert pace.left is None
    clock.now += 1000 + seconds  # the data were read first
    pace.go_on(before + 1)
    assert pace.left == pytest.approx(99 * (1000 + seconds)), "nothing else is known yet"
    for step in range(2, taken + 1):
        clock.now += seconds
        pace.go_on(before + step)
    assert pace.left == pytest.approx((100 - taken) * seconds)
    clock.now += seconds / 2
    assert pace.left == pytest.approx((100 - taken - 0.5) * seconds), "it runs down while a slow round is taken"


def test_times_in_words() -> None:
    assert [minutes(seconds) for seconds in (0, 0.2, 59.5, 61, 3600, 360000)] == [
        "0:00", "0:01", "1:00", "1:01", "1:00:00", "100:00:00",
    ]  # fmt: skip


def test_a_line_tells_round_accuracy_epsilon_and_time() -> None:
    clock = Time()
    pace = Pace(10, clock)
    for step in (1, 2):
        clock.now += 30
        pace.go_on(step)
    line = line_of({"round": 2, "test_accuracy": 0.5, "epsilon": 3.14159}, pace)
    assert line == "round 2 of 10, test accuracy 50.00 %, epsilon 3.15, 1:00 so far, 4:00 left"


def test_lines_are_due_when_measured_and_after_a_silence() -> None:
    clock = Time()
    pace, due = Pace(9, clock), []
    for step in range(1, 10):
        clock.now += 25
        pace.go_on(step)
        due.append(pace.is_due(measured=step == 3))
    assert [step for step, is_due in enumerate(due, 1) if is_due] == [1, 3, 6, 9]


def test_a_run_logs_its_measured_rounds(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedceo"):
        run = fedceo.run(SHORT)
        lines = [record.getMessage() for record in caplog.records]
        assert [line.split(",")[0] for line in lines] == ["round 1 of 4", "round 2 of 4", "round 4 of 4"]
        assert f"test accuracy {100 * run.history[-1]['test_accuracy']:.2f} %" in lines[-1]
        assert [", epsilon " in line for line in lines] == [False, True, True], "with every measurement"
        caplog.clear()
        fedceo.run(SHORT, progress=False)
        assert not caplog.records


def test_lines_are_shown_where_logging_is_not_configured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = logging.Logger("alone")
    monkeypatch.setattr(told, "LOG", alone)
    with told.logged(3, wanted=True) as log:
        log({"round": 3, "test_accuracy": 0.25})
    assert capsys.readouterr().err.startswith("round 3 of 3, test accuracy 25.00 %, ")
    assert (alone.handlers, alone.level) == ([], logging.NOTSET), "it is left as it was found"


@pytest.mark.parametrize("columns, whole", [(120, True), (50, False)])
def test_a_terminal_gets_a_bar_that_is_written_over(
    columns: int, whole: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quick rounds share a frame, the last measurement stays, no frame is wider than the terminal, and it ends."""
    monkeypatch.setattr(told, "LOG", logging.Logger("alone"))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    with told.logged(400, wanted=True) as tell:
        tell({"round": 1, "test_accuracy": 0.25})
        for number in range(2, 401):
            tell({"round": number})
    written = capsys.readouterr().err
    frames = written.removesuffix("\n").split("\r")[1:]
    assert written.endswith("\n") and written.count("\n") == 1
    assert 2 <= len(frames) < 100 and max(map(len, frames)) < columns
    assert frames[0].startswith("╌") and frames[-1].startswith("━" * 20 + " round 400 of 400, ")
    assert ("test accuracy 25.00 %" in frames[-1]) == whole


@pytest.mark.parametrize("columns", [80, 40])
def test_a_bar_gives_way_to_its_words_before_they_are_cut(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(told, "LOG", logging.Logger("alone"))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    with told.logged(300, wanted=True) as tell:
        tell({"round": 300, "test_accuracy": 0.25, "epsilon": 2.125})
    frame = capsys.readouterr().err.strip()
    assert frame.startswith("round 300 of 300, ") and frame.endswith(" left") and len(frame) < columns
    assert ("test accuracy 25.00 %, epsilon 2.13" in frame) == (columns == 80)


def test_a_refused_run_leaves_no_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(told, "LOG", logging.Logger("alone"))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with pytest.raises(ValueError, match="refused"), told.logged(4, wanted=True):
        raise ValueError("refused")
    assert capsys.readouterr().err == ""


def test_a_run_shows_itself_in_a_few_words() -> None:
    run = fedceo.run(SHORT)
    words: Any = repr(run)
    accuracy = f"test accuracy {100 * run.result['accuracy']['last']:.2f} %"
    assert words.startswith("<Run of fedceo on digits with mlp: 4 of 4 rounds") and accuracy in words
    epsilon = next(row["epsilon"] for row in run.result["privacy"] if row["observer"] == "outsider")
    assert f"epsilon {rounded_up(epsilon):g} for the outsider" in words and len(words) < 200
    html = run._repr_html_()
    assert html.count("<polyline") == 1 and accuracy in html and len(html) < 2000
    values = sorted(100 * each["test_accuracy"] for each in run.history if "test_accuracy" in each)
    assert html.count("<circle") == 2 and all(f"{value:.2f} %</text>" in html for value in values)


def test_a_curve_is_drawn_of_finite_measurements_of_any_metric() -> None:
    history = [
        {"round": t, "metric": "rmse", "test_rmse": value} for t, value in enumerate((2.5, math.nan, 1.5, math.inf), 1)
    ]
    html = as_html("<Run & more>", history, 4)
    assert html.startswith("<div>Run &amp; more</div>") and "test RMSE, rounds 1 to 3 of 4" in html
    assert 'points="60.0,0.0 180.0,60.0"' in html and "nan" not in html and "inf" not in html
    assert as_html("<x>", history[:2], 4) == "<div>x</div>", "one measurement is no curve"

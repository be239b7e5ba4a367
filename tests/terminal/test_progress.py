"""Progress fits the terminal, and is plain lines where there is none."""

import sys

import pytest
from rich.console import Console

from fedceo.terminal import progress as shown
from fedceo.terminal.progress import progress

METRICS = {"round": 120, "test_accuracy": 0.87314, "epsilon": 2.31}


def on_terminal(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    def terminal(stderr: bool = False) -> Console:
        return Console(stderr=stderr, force_terminal=True, width=width, color_system=None)

    monkeypatch.setattr(shown, "console", terminal)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress(300) as advance:
        advance(METRICS)
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "width, wanted",
    [
        (120, ["━", "training", "120/300", "test accuracy 87.31 %", "epsilon 2.31 after round 120", "so far", "left"]),
        (80, ["━", "training", "120/300", "87.31 %", "epsilon 2.31", "left"]),
        (46, ["120/300", "87.31 %", "epsilon 2.31", "left"]),
        (40, ["120/300", "87.31 %", "left"]),
        (10, ["120/300"]),
    ],
)
def test_nothing_is_cut(
    width: int, wanted: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = on_terminal(width, monkeypatch, capsys)
    assert all(words in frame for words in wanted) and "…" not in frame
    lines = frame.replace("\r", "\n").replace("\x1b[2K", "").replace("\x1b[?25l", "").replace("\x1b[?25h", "")
    assert max(len(line) for line in lines.splitlines()) <= width


@pytest.mark.parametrize("colour", [False, True])  # notebooks force colours on programs that they start
def test_without_a_terminal_there_is_a_line_a_measurement(
    colour: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if colour:
        monkeypatch.setenv("FORCE_COLOR", "1")
    with progress(300) as advance:
        for step in (118, 119):
            advance({"round": step})
        advance(METRICS)
    first, measured = capsys.readouterr().err.splitlines()
    assert first.startswith("training: round 118 of 300, ")
    assert measured.startswith("training: round 120 of 300, test accuracy 87.31 %, epsilon 2.31, ")
    with progress(3, "runs", of_rounds=False) as advance:
        for step in (1, 2):
            advance({"round": step})
    assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines()] == ["runs: 1 of 3", "runs: 2 of 3"]
    with progress(3, quiet=True) as advance:
        advance(METRICS)
    assert capsys.readouterr().err == ""

"""The first program of the documentation prints what the page says."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "README.md"
ACCURACY = re.compile(r"(?<=test accuracy )[\d.]+")


def test_the_first_program_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    program, shown = re.findall(r"^```(?:python|text)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(program, PAGE.name, "exec"), {})
    printed = capsys.readouterr().out
    assert ACCURACY.sub("", printed).split() == ACCURACY.sub("", shown).split()
    found, said = (float(ACCURACY.findall(text)[0]) for text in (printed, shown))
    assert found == pytest.approx(said, abs=4), "another machine may round otherwise"

"""The page on Python works as it stands: its blocks run one after another, and say what they claim."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "python.md"


def blocks() -> list[tuple[int, str]]:
    """The Python blocks of the page, each with the number of its first line."""
    text = PAGE.read_text()
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text[: match.start(1)].count("\n"), match[1]) for match in found]


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    page = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)  # where its method is looked for
    names: dict[str, Any] = vars(page)
    for line, code in blocks():
        exec(compile("\n" * line + code, str(PAGE), "exec"), names)  # a failure names the page's line
    assert "cohort.sise: unknown field, did you mean size?\n" in capsys.readouterr().out
    assert names["accuracy"] == pytest.approx(names["fedceo"].load("runs/first").result["accuracy"]["last"])
    assert len((tmp_path / "runs" / "limited" / "metrics.jsonl").read_text().splitlines()) == 2
    assert names["fedceo"].load("runs/people").result["data"] == "people"
    assert len(names["groups"]) == 2, "seeds are averaged"
    assert {"accuracy.pdf", "partition.png", "class_bars.pdf"} <= {file.name for file in tmp_path.iterdir()}


def test_the_page_is_linked() -> None:
    for page in ("README.md", "docs/runs.md", "docs/experiment-file.md"):
        assert "python.md)" in (ROOT / page).read_text(), page

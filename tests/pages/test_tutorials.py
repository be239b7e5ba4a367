"""The tutorials run from top to bottom, and come out as their text says."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
SAYS: dict[str, tuple[str, ...]] = {
    "first-run": (
        r"outsider: epsilon 8\.00 per user; sees averages",
        r"repeatable run",
        r"finished: False, after round 1\nthe same end: True",
        r"results: runs/short",
    ),
    "own-data-and-model": (
        r"40 clients, \d+ test records",
        r"keeps running statistics of records",
        r"cohort\.sise: unknown field, did you mean size\?",
        r"outsider: epsilon none per user",
        r"results: runs/from-files",
    ),
    "compare-methods": (
        r"fedceo less udp-fedavg: [+-]\d+\.\d\d points\n    95 % interval [+-]\d+\.\d\d to [+-]\d+\.\d\d",
        r"\\begin\{tabular\}",
        r"report\.html",
    ),
    "federation-with-flower": (
        r"three nodes are in",
        r"exit code 0",
        r"round 3: accuracy 0\.\d+",
        r"server: epsilon \d+\.\d\d per user",
    ),
}
"""What each notebook prints at least."""


def test_every_notebook_is_kept_without_outputs() -> None:
    assert {notebook.stem for notebook in NOTEBOOKS} == set(SAYS)
    for notebook in NOTEBOOKS:
        cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
        assert cells and not any(cell["outputs"] or cell["execution_count"] for cell in cells), notebook.name


@pytest.fixture
def tutorials(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("nbclient")
    monkeypatch.syspath_prepend(ROOT / "tools" / "site")
    import tutorials

    monkeypatch.delitem(sys.modules, "tutorials")
    return tutorials


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_says_what_its_text_promises(notebook: Path, tutorials: Any) -> None:
    page = tutorials.page(tutorials.executed(notebook.read_text()))
    printed = "\n".join(re.findall(r"^```` \{ \.text \.printed \}\n(.*?)\n````$", page, re.MULTILINE | re.DOTALL))
    for words in SAYS[notebook.stem]:
        assert re.search(words, printed), words


@pytest.mark.slow
def test_a_cell_or_a_command_that_fails_ends_the_build(tutorials: Any) -> None:
    from nbclient.exceptions import CellExecutionError
    from nbformat.v4 import new_code_cell, new_notebook, writes

    for code in ("1 / 0", "%%sh\nfedceo run gone.toml"):
        with pytest.raises(CellExecutionError):
            tutorials.executed(writes(new_notebook(cells=[new_code_cell(code)])))


def test_outputs_are_text_as_a_terminal_leaves_it(tutorials: Any) -> None:
    assert tutorials.printed("\x1b[1mbold\x1b[0m\n1 of 2\r2 of 2\n") == "```` { .text .printed }\nbold\n2 of 2\n````"

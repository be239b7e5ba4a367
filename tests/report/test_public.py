"""A public page leaves out everything that no epsilon covers, and says so; the ordinary page marks it."""

import json
from pathlib import Path
from typing import Any

import pytest

import fedceo
from fedceo.errors import UsageError
from tests.support.parsed_page import Page
from tests.support.recorded_runs import TABLE

pytest.importorskip("plotly")
pytest.importorskip("jinja2")

from fedceo.report.page import write_report

SEED = 874_512_903


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with everything that a folder can hold, as a sweep leaves it."""
    root = tmp_path_factory.mktemp("private")
    data = {"name": "digits", "clients": 30, "partition": "dirichlet", "local_test": 0.1}
    table: dict[str, Any] = TABLE | {"seed": SEED, "note": "a private remark", "data": data}
    fedceo.run(table, out=root / "mine" / f"seed-{SEED}")
    free = {"privacy": {"mechanism": "none"}, "method": {"name": "fedavg"}}
    fedceo.run(table | free, out=root / "free")
    return root


def words_of(path: Path, tmp_path: Path, *, public: bool) -> tuple[str, str]:
    """The words of a page, and its source without plotly's library, which has all kinds of numbers in it."""
    text = write_report([path], tmp_path / "report.html", public=public).read_text(encoding="utf-8")
    return Page(text).words, text[text.index("<body>") :]


def test_nothing_unnoised_is_on_a_public_page(private: Path, tmp_path: Path) -> None:
    words, text = words_of(private / "mine", tmp_path, public=True)
    run = private / "mine" / f"seed-{SEED}"
    history = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in history:
        hidden = [record.get(name) for name in ("train_loss", "validation_loss", "test_loss")]
        assert not any(f"{value:.4f}" in text for value in hidden if value is not None)
        assert ", ".join(map(str, record["cohort"])) not in text
        for name in ("validation_accuracy", "local_accuracy"):
            shown = None if record.get(name) is None else f"{100 * record[name]:.2f}"
            is_the_same = shown == f"{100 * record.get('test_accuracy', -1):.2f}"
            assert shown is None or is_the_same or shown not in words
    for secret in (
        str(SEED),
        "seed-",
        "a private remark",
        str(private),
        "/tmp",
        "Make it again",
        "P-loc, last",
        "Cost",
    ):
        assert secret not in text, secret
    assert "<img" not in text and "Everything from before the noise is left out" in words
    assert "uploads, the most of any client" not in words and "over the draw of the cohorts" in words


def test_a_public_page_has_no_run_without_an_epsilon(private: Path, runs: Path, tmp_path: Path) -> None:
    words = Page(write_report([private], tmp_path / "both.html", public=True).read_text(encoding="utf-8")).words
    assert "free is left out: no epsilon covers its models" in words
    with pytest.raises(UsageError, match=r"--public: nothing may be shown\. free is left out"):
        write_report([private / "free"], tmp_path / "none.html", public=True)
    with pytest.raises(UsageError, match=r"--public: nothing may be shown\. stopped is left out: it is unfinished"):
        write_report([runs / "stopped"], tmp_path / "none.html", public=True)


def test_the_ordinary_page_marks_what_no_epsilon_covers(private: Path, tmp_path: Path) -> None:
    words, text = words_of(private / "mine", tmp_path, public=False)
    assert "Single clients' models, before noise: not covered by any epsilon." in words
    assert "Columns marked * were measured on private records" in words
    assert text.count('<abbr title="before noise: not covered by any epsilon">*</abbr>') == 5
    assert "own records (P-loc), over rounds; before noise: not covered by any epsilon" in words

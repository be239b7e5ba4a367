"""The pages that tools/pages/generate.py writes say what the settings, the accountant and the benchmarks say."""

import json
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from fedceo.attacks import metrics
from tests.support.page_programs import load_program

ROOT = Path(__file__).parents[2]
ADVICE = "run: python tools/pages/generate.py"


@pytest.fixture
def generate() -> ModuleType:
    return load_program("generate")


def test_the_page_on_the_experiment_file_is_what_the_settings_say(generate: ModuleType) -> None:
    assert (ROOT / "docs" / "experiment-file.md").read_text() == generate.page(), ADVICE
    assert (ROOT / "docs" / "privacy-numbers.md").read_text() == generate.numbers(), ADVICE


def test_the_page_of_recommendations_is_what_the_rules_say() -> None:
    advice = "run: python tools/pages/recommend_page.py"
    assert (ROOT / "docs" / "recommend.md").read_text() == load_program("recommend_page").page(), advice


def test_the_tables_of_the_experiment_file_have_four_columns(generate: ModuleType) -> None:
    rows = [line for line in generate.page().splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows), "bars within a cell are escaped"
    assert "| `layers` | str or list of str | `all` |" in "\n".join(rows)
    assert "| `ratio` | float, at least 1, at most 2 | `1.04` |" in "\n".join(rows)


def test_the_table_of_attacks_is_what_was_measured(generate: ModuleType) -> None:
    page = (ROOT / "docs" / "attacks.md").read_text()
    assert page == generate.with_attacks(page), ADVICE


def test_what_is_claimed_of_the_attacks_was_measured() -> None:
    """Each attack works without privacy; none beats the colour on a noised upload, and smoothing makes it no easier.

    Of several local steps this is said of two attacks: DLG, which looks for the label too, gets stuck there by itself.
    """
    found = json.loads((ROOT / "benchmarks" / "results" / "attacks-cpu.json").read_text())
    studies = found["studies"]
    assert all(study["rows"][-1]["over_constant"]["low"] <= 0 for study in found["smooth"].values())
    assert set(studies) == {"dlg", "idlg", "ig"}
    for name, study in studies.items():
        assert set(study) == {"T0", "T1", "T2", "T3"}
        rows = {(holds, row["name"]): row for holds in study for row in study[holds]["rows"]}
        for without_privacy in (("T0", "attack"), ("T1", "control"), ("T3", "control")):
            assert rows[without_privacy]["over_constant"]["low"] > 0 or (name, without_privacy[0]) == ("dlg", "T3")
        for holds in ("T1", "T2", "T3"):
            assert rows[holds, "attack"]["over_constant"]["low"] <= 0
        smoothed, plain = (np.array(rows[holds, "attack"]["psnr_of_each"]) for holds in ("T2", "T1"))
        low = metrics.median(torch.from_numpy(smoothed - plain)).low
        assert low is not None and low <= 0

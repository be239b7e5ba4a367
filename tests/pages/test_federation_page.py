"""The table of docs/federation.md is the one that its benchmark measured."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "federation.md").read_text()
FOUND = json.loads((ROOT / "benchmarks" / "results" / "liars.json").read_text())
COLUMNS = [
    ("nobody", 0),
    *((attack, n) for attack in ("gradient", "sign flip", "adaptive", "flipped labels") for n in (1, 2)),
]


def test_every_accuracy_with_liars_is_the_measured_one() -> None:
    measured = {(row["defence"], row["attack"], row["liars"]): row for row in FOUND["liars"] if row["sigma"] == 0.5}
    defences = dict.fromkeys(defence for defence, _, _ in measured)
    for defence in defences:
        (line,) = re.findall(rf"^\| {re.escape(defence)} \|.*$", PAGE, re.MULTILINE)
        shown = re.findall(r"\d\.\d\d", line)
        assert shown == [f"{measured[defence, *column]['accuracy']:.2f}" for column in COLUMNS]


def test_no_honest_upload_was_refused() -> None:
    assert sum(row["uploads"] for row in FOUND["honest"]) >= 10_000
    assert not any(row["refused"] for row in FOUND["honest"])
    assert not any(row["refused_honest"] for row in FOUND["liars"])
    assert "The tests refused 0 of 12,000 honest uploads" in PAGE

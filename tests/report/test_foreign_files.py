"""Audits and attacks beside a run that are no text, no JSON or JSON of something else: one line each."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedceo.errors import UsageError
from fedceo.report.attachments import attacks_of, audits_of
from fedceo.report.loading import load_runs

VIEW = {"view": "average", "verdict": "passed"}
BYTES = (b"", b"\xff\xfe\x00", '{"refuted": "caf\xe9"}'.encode("latin1"), b"[" * 100_000, b'{"rows": 9' + b"9" * 5000)
AUDITS: tuple[Any, ...] = (
    None, 3, [], "refuted", {}, {"refuted": False, "findings": [], "views": [1]},
    {"refuted": False, "findings": 3, "views": [VIEW]}, {"refuted": False, "findings": ["x"], "views": [VIEW]},
    {"refuted": False, "findings": [], "views": [{"view": "average"}]},
    {"refuted": False, "findings": [], "views": [VIEW], "power": {}},
    {"refuted": False, "findings": [], "views": [VIEW], "power": {"noise_deficit": "x"}},
    {"refuted": False, "findings": [], "views": [VIEW], "not_covered": [1]},
)  # fmt: skip
ATTACKS: tuple[Any, ...] = (
    None, 3, [], "rows", {}, {"rows": 3}, {"rows": ["x"]}, {"rows": [{"psnr": {"low": 1}}]},
    {"rows": [{"name": "control", "over_constant": 3}]}, {"rows": [{"name": "control", "over_constant": {"low": "x"}}]},
)  # fmt: skip


@pytest.mark.parametrize(
    "name, read, tables", [("audit.json", audits_of, AUDITS), ("attack/one/attack.json", attacks_of, ATTACKS)]
)
def test_attachments(runs: Path, tmp_path: Path, name: str, read: Any, tables: tuple[Any, ...]) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs / "free", folder)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    for content in (*BYTES, *(json.dumps(table).encode() for table in tables)):
        path.write_bytes(content)
        with pytest.raises(UsageError) as caught:
            list(read(load_runs([folder])))
        assert str(caught.value).startswith(f"{path}: not ") and "\n" not in str(caught.value), content[:80]

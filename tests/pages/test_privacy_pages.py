"""The pages on privacy: their Python runs."""

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def test_every_block_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / "privacy.md").read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for code in blocks:
        names: dict[str, Any] = {}
        exec(compile(code, "docs/privacy.md", "exec"), names)
        assert {row.observer for row in names["rows"]} >= {"outsider", "participant", "server"}

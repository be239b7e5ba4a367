"""The pages on privacy: their Python runs and their links lead somewhere."""

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


def test_links_between_the_pages_lead_somewhere() -> None:
    headings = re.findall(r"^#+ (.*)$", (DOCS / "derivations.md").read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    linked = re.findall(r"\(derivations\.md#([\w-]+)\)", (DOCS / "privacy.md").read_text())
    assert linked and set(linked) <= anchors

"""Every link between the files of the repository leads to a file that is there, and to a heading that it has."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.ipynb"), *ROOT.glob("*/README.md")}
)
MARKDOWN = MarkdownIt("commonmark").enable("table")


def markdown(page: Path) -> str:
    """The text of a page, or that of a notebook's cells."""
    if page.suffix != ".ipynb":
        return page.read_text()
    cells = json.loads(page.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def tokens(page: Path) -> list[Token]:
    """The page's tokens with those inside paragraphs and headings after their own."""
    return [token for block in MARKDOWN.parse(markdown(page)) for token in (block, *(block.children or ()))]


def anchors(page: Path) -> set[str]:
    """The anchors that a repository's host and the site make of the page's headings."""
    found = tokens(page)
    headings = [after.content for token, after in pairwise(found) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def targets(page: Path) -> list[str]:
    links = [token.attrs.get("href", token.attrs.get("src")) for token in tokens(page)]
    return [str(link) for link in links if link is not None and not re.match(r"\w+:", str(link))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target in targets(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


def test_a_broken_link_and_a_broken_anchor_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A heading: `code`, too\n")
    page = tmp_path / "page.md"
    page.write_text("[a](other.md#a-heading-code-too) [b](other.md#gone) [c](gone.md) [d](https://example.org)\n")
    assert targets(page) == ["other.md#a-heading-code-too", "other.md#gone", "gone.md"]
    assert anchors(tmp_path / "other.md") == {"a-heading-code-too"}
    with pytest.raises(AssertionError, match=r"\['other.md#gone', 'gone.md'\]"):
        test_every_link_leads_somewhere(page)

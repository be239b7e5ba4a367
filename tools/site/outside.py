"""Files of the repository outside docs/ that pages link to, as pages of the site."""

import posixpath
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
"""A relative link in Markdown up to its anchor; the group is the path."""


def outside_links(pages: Iterable[Path]) -> set[str]:
    """Paths in the repository, not below docs/, of the files that the pages link to."""
    linked = set()
    for page in pages:
        folder = page.parent.relative_to(ROOT).as_posix()
        linked |= {posixpath.normpath(posixpath.join(folder, path)) for path in LINK.findall(page.read_text())}
    return {path for path in linked if not path.startswith("docs/")}


def place(path: str) -> str:
    """Where the site has a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/").replace(".ipynb", ".md")
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


def relinked(text: str, path: str) -> str:
    """The Markdown of a file of the repository with links that lead to places in the site."""
    folder, here = posixpath.dirname(path), posixpath.dirname(place(path))

    def moved(link: re.Match[str]) -> str:
        target = place(posixpath.normpath(posixpath.join(folder, link[1])))
        return f"]({posixpath.relpath(target, here)}"

    return LINK.sub(moved, text)


def page(path: str) -> str:
    """A file outside docs/ as a page: Markdown as it is, anything else as a listing under its path."""
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return relinked(text, path)
    return f"# {path}\n\n````{Path(path).suffix.removeprefix('.')}\n{text}````\n"

"""The site is built without a warning, shows what the repository shows, and needs no network."""

import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt

pytest.importorskip("mkdocs")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
"""Elements that make a browser fetch something, and the attribute that says what."""
COUNTED = {"em", "strong", "li", "ol", "ul", "table", "tr", "td", "pre", "code", "p", "img", "h1", "h2", "h3"}


@dataclass
class Parsed(HTMLParser):
    """What a page of HTML has: anchors, links, fetched addresses, and in its article text and elements."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    text: str = ""
    elements: Counter[str] = field(default_factory=Counter)
    whole: bool = False
    """Whether everything counts as the article."""

    def __post_init__(self) -> None:
        super().__init__()
        self.inside, self.skipped = self.whole, False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in LOADED and found.get("rel") != "canonical":
            self.fetched.append(found.get(LOADED[tag], ""))
        self.inside |= tag == "article"
        self.skipped |= found.get("class") == "headerlink"
        if self.inside:
            self.elements[tag] += tag in COUNTED

    def handle_endtag(self, tag: str) -> None:
        self.inside &= tag != "article"
        self.skipped &= tag != "a"

    def handle_data(self, data: str) -> None:
        if self.inside and not self.skipped:
            self.text += "".join(data.split())


def parsed(html: str, whole: bool = False) -> Parsed:
    page = Parsed(whole=whole)
    page.feed(html)
    return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The site, with tutorials as they are kept: test_tutorials.py runs them."""
    import nbformat
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.syspath_prepend(ROOT / "tools" / "site")
        import tutorials

        patch.setattr(tutorials, "executed", lambda notebook: nbformat.reads(notebook, as_version=4))
        build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(folder)))
        yield folder
    for path in (ROOT / "tools" / "site").glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Parsed]:
    return {file: parsed(file.read_text()) for file in site.rglob("*.html") if file.name != "404.html"}


def test_every_link_and_anchor_of_the_site_is_there(pages: dict[Path, Parsed]) -> None:
    broken = []
    for file, page in pages.items():
        for link in page.links:
            address = urlsplit(link)
            if address.scheme:
                continue
            target = (file.parent / unquote(address.path)).resolve() if address.path else file
            there = target.exists() and (target not in pages or address.fragment in pages[target].anchors | {""})
            if not there:
                broken.append(f"{file.name}: {link}")
    assert not broken


def test_nothing_is_fetched_from_a_network(site: Path, pages: dict[Path, Parsed]) -> None:
    away = {
        address for page in pages.values() for address in page.fetched if urlsplit(address).scheme not in ("", "data")
    }
    assert not away
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", sheet.read_text()), sheet.name


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_is_the_same_on_the_site_as_in_the_repository(page: Path, pages: dict[Path, Parsed], site: Path) -> None:
    name = "index" if page.stem == "README" else page.stem
    shown = pages[site / f"{name}.html"]
    meant = parsed(MarkdownIt("commonmark").enable("table").render(page.read_text()), whole=True)
    assert meant.text in shown.text
    assert {tag: shown.elements[tag] for tag in meant.elements} == meant.elements


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", ["index", "results", "derivations", "commands", "api/fedceo", "tutorials/first-run"])
def test_the_site_opens_from_disk_without_a_network(name: str, width: int, browser: Any, site: Path) -> None:
    with browser.new_context(viewport={"width": width, "height": 900}, offline=True) as context:
        page = context.new_page()
        asked: list[str] = []
        complaints: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto((site / f"{name}.html").as_uri())
        assert all(page.evaluate("[...document.images].map(i => i.naturalWidth)"))
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not complaints and all(address.startswith(("file:", "data:", "about:")) for address in asked)


def test_the_search_works_from_disk(browser: Any, site: Path) -> None:
    with browser.new_context(viewport={"width": 1280, "height": 900}, offline=True) as context:
        page = context.new_page()
        page.goto((site / "index.html").as_uri())
        page.click(".md-search__input")
        page.keyboard.type("memberships")
        page.wait_for_selector(
            ".md-search-result__item a[href*='privacy.html'], .md-search-result__item a[href*='derivations.html']"
        )


def test_the_glossary_explains_words_where_they_stand(site: Path) -> None:
    privacy = (site / "privacy.html").read_text()
    for word in ("zero-out", "amplified", "void for whoever knows the seed", "known memberships"):
        assert re.search(f'<abbr title="[^"]+">{word}</abbr>', privacy), word


def test_every_command_and_public_name_is_in_the_reference(site: Path, pages: dict[Path, Parsed]) -> None:
    import fedceo

    commands = pages[site / "commands.html"].anchors
    assert {"fedceo-run", "fedceo-sweep", "fedceo-privacy-audit", "fedceo-flower-new"} <= commands
    rooms = {"accounting", "data", "models", "tensors"}
    names = {f"fedceo.{name}" for name in fedceo.__all__ if name != "__version__" and name not in rooms}
    assert names <= pages[site / "api" / "fedceo.html"].anchors
    assert all((site / "api" / f"{room}.html").exists() for room in rooms)


def test_every_tutorial_is_a_page_that_offers_its_notebook(site: Path, pages: dict[Path, Parsed]) -> None:
    for notebook in (ROOT / "docs" / "tutorials").glob("*.ipynb"):
        assert notebook.name in pages[site / "tutorials" / f"{notebook.stem}.html"].links
        assert (site / "tutorials" / notebook.name).read_bytes() == notebook.read_bytes()

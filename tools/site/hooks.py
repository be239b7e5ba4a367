"""What MkDocs calls while it builds the site (mkdocs.yml): it adds pages that are no files of docs/, mends links that
leave docs/, and explains the glossary's words where they stand."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import api_pages
import commands_page
import outside
import tooltips
import tutorials
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    docs = Path(config.docs_dir)
    written = {"commands.md": commands_page.page()}
    written |= {f"api/{name}.md": api_pages.page(module) for name, module in api_pages.MODULES.items()}
    written |= {outside.place(path): outside.page(path) for path in sorted(outside.outside_links(docs.rglob("*.md")))}
    written |= dict(tutorial_pages(sorted(docs.glob("tutorials/*.ipynb"))))
    for place, text in written.items():
        files.append(File.generated(config, place, content=text))
    return files


def tutorial_pages(notebooks: list[Path]) -> Iterator[tuple[str, str]]:
    """Places and Markdown of the tutorials, which are run side by side."""
    with ThreadPoolExecutor() as pool:
        for path, executed in zip(notebooks, pool.map(tutorials.executed, map(Path.read_text, notebooks)), strict=True):
            text = outside.relinked(tutorials.page(executed), f"docs/tutorials/{path.name}")
            offer = f"This page is a notebook that was run while the site was built: [{path.name}]({path.name})."
            yield f"tutorials/{path.stem}.md", f"{text}\n---\n\n{offer}\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.generated_by is None:
        markdown = outside.relinked(markdown, f"docs/{page.file.src_uri}")
    return tooltips.with_tooltips(markdown)

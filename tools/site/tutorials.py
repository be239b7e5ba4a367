"""The tutorials: notebooks kept without outputs, run while the site is built, and shown with what they printed."""

import base64
import os
import re
import sys
import tempfile
from functools import cache
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

LONGEST_CELL = 300
"""Seconds after which a cell is taken to hang."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@cache
def executed(notebook: str) -> NotebookNode:
    """The notebook with its outputs, run from top to bottom in an empty folder by this Python; a cell's error ends it.

    Args:
        notebook: what its file holds.
    """
    found = nbformat.reads(notebook, as_version=4)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # where `fedceo` is
        "COLUMNS": "80",
        "OMP_NUM_THREADS": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            found,
            timeout=LONGEST_CELL,
            coalesce_streams=True,
            extra_arguments=["--log-level=ERROR"],  # no warning that kernel and client talk over loopback
            resources={"metadata": {"path": folder}},
        )
        client.execute(env=environment)
    return found


def page(notebook: NotebookNode) -> str:
    """An executed notebook as Markdown."""
    return "\n\n".join(part for cell in notebook.cells for part in shown(cell)) + "\n"


def shown(cell: NotebookNode) -> list[str]:
    """A cell: its text, or its code and what came out of it."""
    if cell.cell_type == "markdown":
        return [cell.source]
    first = cell.source.partition("\n")[0]
    language = "bash" if first in ("%%bash", "%%sh") else "toml" if first.endswith(".toml") else "python"
    return [f"````{language}\n{cell.source}\n````", *map(output, cell.outputs)]


def output(found: NotebookNode) -> str:
    """One output: a picture, HTML that an object gives of itself, or text."""
    if found.output_type == "stream":
        return printed(found.text)
    if "image/png" in found.data:
        picture = base64.b64encode(base64.b64decode(found.data["image/png"])).decode()  # one line
        return f"![What the cell above draws](data:image/png;base64,{picture})"
    if "text/html" in found.data:
        return f'<div class="printed">{found.data["text/html"]}</div>'
    return printed(found.data["text/plain"])


def printed(text: str) -> str:
    """Text as a terminal shows it in the end: without colours, and of lines that overwrite each other the last."""
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in COLOURS.sub("", text).rstrip().split("\n")]
    return "\n".join(["```` { .text .printed }", *lines, "````"])

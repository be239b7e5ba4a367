"""Lists of the names that experiment files can use, and of the data sets on this machine."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedceo.data import DATASETS
from fedceo.errors import UsageError
from fedceo.experiment.catalogue import experiment_files
from fedceo.experiment.file import ENCODING, load_grid
from fedceo.experiment.method_table import known_methods
from fedceo.experiment.registry import METHODS, TASKS
from fedceo.models import MODELS
from fedceo.terminal.tables import Column, console, show_table


def inventory() -> dict[str, dict[str, str]]:
    """Everything that can be named in an experiment file and the files themselves, with a line for each."""
    return {
        "methods": {name: _first_sentence(METHODS.descriptions[name]) for name in known_methods()},
        "tasks": dict(TASKS.descriptions),
        "models": dict(MODELS.descriptions),
        "data sets": dict(DATASETS.descriptions),
        "experiment files": {str(path): _description(path) for path in experiment_files()},
    }


def _description(path: Path) -> str:
    """The comment in a file's first line and, where the file has a grid, the number of its cells and its axes."""
    try:
        grid = load_grid(path)
    except UsageError as error:
        return f"cannot be read: {str(error).removeprefix(f'{path}: ')}"
    first = path.read_text(encoding=ENCODING).split("\n", 1)[0]
    comment = first.removeprefix("#").strip() if first.startswith("#") else ""
    return comment if grid is None else f"{comment} ({grid})".strip()


def _first_sentence(words: str) -> str:
    return re.split(r"(?<!et al)\. ", words)[0].rstrip(".")


def show_inventory(inventory: Mapping[str, Mapping[str, str]]) -> None:
    """Print all names, kind by kind, with a line each."""
    out = console()
    for kind, entries in inventory.items():
        out.print(kind, style="bold")
        if kind == "experiment files":  # their names are long, and must stay unbroken to be copied
            for name, line in entries.items():
                out.print(f"  {name}", soft_wrap=True, highlight=False)
                out.print(Padding(Text(line), (0, 0, 0, 6)))
        else:
            grid = Table.grid(padding=(0, 2))
            for name, line in entries.items():
                grid.add_row(Text(f"  {name}"), Text(line))
            out.print(grid)
        if not entries:
            out.print("  none here")


def show_data(rows: list[dict[str, Any]], root: Path | None) -> None:
    """Print which data sets are there, and where the others are looked for."""
    out = console()
    columns = (Column("data set", "name"), Column("", "name"), Column("looked for in the data folder", "words"))
    show_table(out, columns, [(row["name"], "missing" if row["missing"] else "there", row["where"]) for row in rows])
    out.print(f"data folder: {root or 'none; set FEDCEO_DATA or data.root'}", highlight=False)


def show_checked(rows: list[dict[str, Any]]) -> None:
    """Print files with their checksums."""
    columns = (Column("file", "name"), "bytes", Column("MD5", "name"), Column("", "words"))
    show_table(console(), columns, [(row["file"], f"{row['bytes']:,}", row["md5"], row["verdict"]) for row in rows])

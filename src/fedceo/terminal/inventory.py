"""Lists of the names that experiment files can use, and of the data sets on this machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedceo.terminal.tables import Column, console, show_table


def show_inventory(inventory: Mapping[str, Mapping[str, str]]) -> None:
    """Print all names, kind by kind, with a line each."""
    out = console()
    for kind, entries in inventory.items():
        out.print(f"[bold]{kind}[/bold]")
        if kind == "experiment files":  # their names are long, and must stay unbroken to be copied
            for name, line in entries.items():
                out.print(f"  {name}", soft_wrap=True, highlight=False, markup=False)
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

"""Options of several commands."""

from pathlib import Path
from typing import Annotated

import typer

from fedceo.errors import UsageError

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Change a field: section.field=value. May be repeated.")
]
CellName = Annotated[str | None, typer.Option("--cell", help="The name of one cell, for a file with a grid.")]


def check_cell(cell: str | None, target: Path | None) -> None:
    """Refuse --cell where there is no experiment file that could have a grid."""
    if cell is not None and (target is None or target.is_dir()):
        raise UsageError(f"--cell: {cell!r} names a cell of an experiment file, and none is given")

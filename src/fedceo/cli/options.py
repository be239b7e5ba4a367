"""Options that several commands share."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Change a field: section.field=value. May be repeated.")
]
CellName = Annotated[str | None, typer.Option("--cell", help="The cell to take of a file with a [grid], by its name.")]

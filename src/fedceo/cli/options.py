"""Options of several commands."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Change a field: section.field=value. May be repeated.")
]

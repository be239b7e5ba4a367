"""Options of several commands."""

from pathlib import Path
from typing import Annotated, Any

import typer
from click import get_current_context

from fedceo.errors import UsageError

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Change a field: section.field=value. May be repeated.")
]
Rounds = Annotated[int | None, typer.Option("--rounds", help="The number of rounds: --set train.rounds=N.")]
Seed = Annotated[int | None, typer.Option("--seed", help="The seed: --set seed=N.")]
Epsilon = Annotated[
    float | None, typer.Option("--epsilon", help="The epsilon to solve the noise for: --set privacy.target_epsilon=E.")
]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda or auto: --set train.device=NAME.")]
MethodName = Annotated[
    str | None, typer.Option("--method", help="Another method, with its defaults: --set method.name=NAME.")
]
SHORT_FORMS = {
    "method": "method.name", "seed": "seed", "rounds": "train.rounds", "epsilon": "privacy.target_epsilon",
    "device": "train.device",
}  # fmt: skip
"""Options that stand for a field of the experiment file."""
CellName = Annotated[str | None, typer.Option("--cell", help="The name of one cell, for a file with a grid.")]


def check_cell(cell: str | None, target: Path | None) -> None:
    """Refuse --cell where there is no experiment file that could have a grid."""
    if cell is not None and (target is None or target.is_dir()):
        raise UsageError(f"--cell: {cell!r} names a cell of an experiment file, and none is given")


def new_folder(base: Path) -> Path:
    """`base`, or one like it that is free, kept for this command until it ends."""
    from fedceo.simulation.durable import claimed_folder

    return get_current_context().with_resource(claimed_folder(base))


def check_out(out: Path) -> None:
    """Refuse a folder that cannot be one, before anything is run into it."""
    if file := next((each for each in (out, *out.parents) if each.exists() and not each.is_dir()), None):
        raise UsageError(f"--out: {file} is no folder, expected one, or a name that is free")


def with_short_forms(overrides: list[str] | None, **given: Any) -> list[str]:
    """The overrides behind those that the short forms stand for: a method must be named before its fields are set."""
    short = [f"{field}={given[name]}" for name, field in SHORT_FORMS.items() if given.get(name) is not None]
    return [*short, *(overrides or [])]

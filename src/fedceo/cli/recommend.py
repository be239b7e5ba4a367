"""`fedceo recommend`: an experiment file for a federation that is described in numbers."""

import json
from typing import Annotated

import typer

from fedceo.cli.options import Json
from fedceo.errors import UsageError


def recommend(
    clients: Annotated[int, typer.Option(help="N, the number of clients.")],
    records: Annotated[int, typer.Option(help="Training records of each client, about.")],
    epsilon: Annotated[float, typer.Option(help="The epsilon of whoever sees every model.")],
    shape: Annotated[str | None, typer.Option(help="Of one record, such as 3x32x32; left out: a table's row.")] = None,
    as_json: Json = False,
) -> None:
    """Print an experiment file by rules from measured results, and what it will cost as comments."""
    from fedceo.studies.recommend import recommend as recommend_for

    found = recommend_for(clients, records, epsilon, None if shape is None else _numbers(shape))
    if as_json:
        rows = [row.as_dict() for row in found.rows]
        print(json.dumps({"experiment": found.table, "reasons": found.reasons, "privacy": rows}))
    else:
        print(found.as_toml(), end="")


def _numbers(shape: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in shape.split("x"))
    except ValueError:
        raise UsageError(f"--shape: {shape!r}, expected whole numbers such as 3x32x32") from None

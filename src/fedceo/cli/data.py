"""`fedceo data`: which data sets are there, whether they are what was published, and how to get them."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedceo.cli.help import Group
from fedceo.cli.options import Json
from fedceo.errors import UsageError

app = typer.Typer(cls=Group, help="List, verify and fetch data sets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A data set of `fedceo data list`.")]
Root = Annotated[str | None, typer.Option(help="The folder of data sets; left out: the variable FEDCEO_DATA.")]


@app.command("list")
def list_(root: Root = None, as_json: Json = False) -> None:
    """Say which data sets are there, and where the others are looked for."""
    from fedceo.data import DATASETS, data_root, known
    from fedceo.terminal.inventory import show_data

    rows = [
        {
            "name": name,
            "missing": known(name).missing(data_root(root)),
            "where": known(name).where,
            "description": description,
        }
        for name, description in DATASETS.descriptions.items()
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        show_data(rows, data_root(root))


@app.command()
def verify(name: Name, root: Root = None, as_json: Json = False) -> None:
    """Check a data set's files against their published checksums, and read them."""
    from fedceo.data import data_root, known
    from fedceo.terminal.inventory import show_checked

    data = known(name)
    checked = data.check(data_root(root))
    rows = [{"file": str(each.path), "bytes": each.size, "md5": each.md5, "verdict": each.verdict} for each in checked]
    if as_json:
        print(json.dumps(rows, indent=2))
    elif rows:
        show_checked(rows)
    wrong = [each for each in checked if each.published not in (None, each.md5)]
    if wrong:
        raise UsageError(f"{wrong[0].path}: {wrong[0].verdict}, found {wrong[0].md5}")
    source = data.load(data_root(root))
    if not as_json:
        held = f", {len(source.test_y):,} to test on" if len(source.test_y) else ", no test set"
        print(f"{name}: {len(source.y):,} records{held}, {source.classes} classes")


@app.command()
def get(name: Name, root: Root = None) -> None:
    """Fetch a data set from its authors' address, check it, and put it where it is looked for."""
    from fedceo.data import data_root, known
    from fedceo.data.download import get as fetch
    from fedceo.terminal.progress import downloads

    folder = data_root(root)
    with downloads() as on_progress:
        files: list[Path] = fetch(known(name), folder, on_progress)
    for path in files:
        print(path)

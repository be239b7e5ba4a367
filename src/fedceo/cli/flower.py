"""`fedceo flower`: from an experiment file to a federation of machines."""

from pathlib import Path
from typing import Annotated

import typer

from fedceo.cli.options import CellName

app = typer.Typer(help="Federations of machines, on Flower.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `new` a command of its own while it is the only one."""


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the app.")],
    file: Annotated[Path, typer.Argument(help="An experiment file (TOML).")],
    cell: CellName = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Change a field: section.field=value.")] = None,
) -> None:
    """Write a Flower app that runs an experiment, with a hook for records of your own."""
    import fedceo.deploy.flower  # noqa: F401, says so where Flower is missing
    from fedceo.deploy.new import write_app
    from fedceo.experiment.file import load_experiment

    deployed = write_app(folder, load_experiment(file, overrides or [], cell))
    print(f"a Flower app: {folder}")
    print(f"  {folder}/federation/data.py reads the records: change it to read your own")
    print(f"  noise comes from the operating system, noise multiplier {deployed.privacy.noise_multiplier:.4g}")
    print("try it in simulation with:")
    print(f'  flwr run {folder} local --stream --federation-config "num-supernodes={deployed.data.clients}"')

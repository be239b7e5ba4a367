"""`fedceo flower`: a federation of machines from an experiment file."""

from pathlib import Path
from typing import Annotated

import typer

from fedceo.cli.options import CellName

app = typer.Typer(help="Federations of machines, on Flower.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Typer makes a single command the whole program unless there is a callback."""


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the app.")],
    file: Annotated[Path, typer.Argument(help="An experiment file (TOML).")],
    cell: CellName = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Change a field: section.field=value.")] = None,
) -> None:
    """Write a Flower app that runs an experiment, with a hook for records of your own."""
    import fedceo.deploy.flower  # noqa: F401, raises the error for a missing Flower
    from fedceo.deploy.new import write_app
    from fedceo.experiment.file import load_experiment

    deployed = write_app(folder, load_experiment(file, overrides or [], cell))
    print(f"a Flower app: {folder}")
    print(f"  {folder}/federation/data.py reads the records: change it to read your own")
    print(f"  noise comes from the operating system, noise multiplier {deployed.privacy.noise_multiplier:.4g}")
    print("try it in simulation with:")
    print(f'  flwr run {folder} local --stream --federation-config "num-supernodes={deployed.data.clients}"')

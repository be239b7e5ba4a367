"""`fedceo flower`: a federation of machines from an experiment file."""

from pathlib import Path
from typing import Annotated

import typer

from fedceo.cli.help import Group
from fedceo.cli.options import CellName

app = typer.Typer(cls=Group, help="Federations of machines, on Flower.", no_args_is_help=True)


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
    print(f"  {folder}/README.md has the commands of SuperLink and nodes")
    print(f"  noise comes from the operating system, noise multiplier {deployed.privacy.noise_multiplier:.4g}")
    print("try it in simulation with:")
    print(f'  flwr run {folder} local --stream --federation-config "num-supernodes={deployed.data.clients}"')


@app.command()
def superlink(
    ssl_ca_certfile: Annotated[Path, typer.Option(help="The authority's certificate.")],
    ssl_certfile: Annotated[Path, typer.Option(help="The SuperLink's certificate, for its name and for 127.0.0.1.")],
    ssl_keyfile: Annotated[Path, typer.Option(help="The key of that certificate.")],
    database: Annotated[Path, typer.Option(help="The file of the SuperLink's state.")],
    host: Annotated[str, typer.Option(help="The address on which nodes are served.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port on which nodes are served.")] = 8443,
    control_port: Annotated[
        int, typer.Option(min=1, max=65535, help="The port for `flwr`, on 127.0.0.1 alone.")
    ] = 8444,
) -> None:
    """Serve registered nodes on the network, and whoever starts runs on this machine alone."""
    import fedceo.deploy.flower  # noqa: F401, raises the error for a missing Flower
    from fedceo.deploy.superlink import serve_superlink

    serve_superlink(host, port, control_port, ssl_ca_certfile, ssl_certfile, ssl_keyfile, database)


@app.command()
def supernode(
    folder: Annotated[Path, typer.Argument(metavar="APP", help="The folder of the app that this node runs.")],
    superlink: Annotated[str, typer.Option(help="The SuperLink, as host:port.")],
    root_certificates: Annotated[Path, typer.Option(help="The authority's certificate.")],
    auth_supernode_private_key: Annotated[Path, typer.Option(help="The node's private key.")],
    node_config: Annotated[str, typer.Option(help='The client\'s number: "partition-id=0".')],
) -> None:
    """Be a node of a federation that runs this very app, and never code from the network."""
    import fedceo.deploy.flower  # noqa: F401, raises the error for a missing Flower
    from fedceo.deploy.supernode import serve_supernode

    serve_supernode(folder, superlink, root_certificates, auth_supernode_private_key, node_config)

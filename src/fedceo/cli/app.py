"""The commands: a few lines each, no logic. Errors a user can cause are one line and exit code 2."""

import errno
import io
import json
import logging
import sys
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from click import Context
from click.exceptions import Abort, ClickException, NoArgsIsHelpError, NoSuchOption

from fedceo import __version__
from fedceo.cli import attack, publish, recommend, release, report, studies
from fedceo.cli.data import app as data_app
from fedceo.cli.flower import app as flower_app
from fedceo.cli.help import Group
from fedceo.cli.notes import Notes, note
from fedceo.cli.options import CellName, Json, Overrides
from fedceo.cli.privacy import app as privacy_app
from fedceo.cli.run import demo, run
from fedceo.errors import UsageError

NOT_OURS = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOTDIR, errno.EISDIR,
    errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip
"""Errors of a disk, its permissions or names on it, which a user can mend, as any error that names a file."""

FIRST = ("run", "demo", "show", "list", "fields")
"""The commands that a newcomer needs, which the help names before all others."""
GUESSED = {
    "lr": ["train.learning_rate"], "epochs": ["train.local_epochs"], "batch": ["train.batch_size"],
    "optimiser": ["train.optimizer"], "dataset": ["data.name"], "data": ["data.name"], "model": ["model.name"],
    "task": ["task.name"], "cohort": ["cohort.size"], "sigma": ["privacy.noise_multiplier"],
    "noise": ["privacy.noise_multiplier"], "mechanism": ["privacy.mechanism"],
}  # fmt: skip
"""Fields by what other programs call them, for the answer to an option that is none."""


class RunFirst(Group):
    """The commands with those of FIRST in front."""

    def list_commands(self, ctx: Context) -> list[str]:
        return [*FIRST, *(name for name in self.commands if name not in FIRST)]


app = typer.Typer(
    cls=RunFirst,
    help="Federated learning under differential privacy, around FedCEO.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")
app.add_typer(privacy_app, name="privacy")
app.command()(run)
app.command()(demo)
app.command()(studies.sweep)
app.command()(studies.tune)
app.command()(recommend.recommend)
app.command()(report.report)
app.command()(publish.table)
app.command()(publish.figure)
app.command()(publish.trade_off)
app.command()(release.release)
app.command()(attack.attack)


def say_version(asked: bool) -> None:
    if asked:
        print(f"fedceo {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=say_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The options of the program itself, before any command."""


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    as_json: Json = False,
) -> None:
    """Print a finished run."""
    from fedceo.simulation.folder import RunFolder
    from fedceo.terminal.results import show_result

    run_folder = RunFolder(folder)
    experiment = run_folder.experiment()
    if not run_folder.finished:
        done = f"{len(run_folder.history())} of {experiment.train.rounds} rounds"
        further = "flwr run with the same out" if run_folder.is_federation else f"fedceo run --resume {folder}"
        raise UsageError(f"{folder}: unfinished, {done}; go on with: {further}")
    if as_json:
        print(json.dumps(run_folder.result()))
    else:
        show_result(run_folder.result(), folder)


@app.command()
def partition(
    file: Annotated[Path, typer.Argument(help="An experiment file (TOML).")],
    cell: CellName = None,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="The picture, PNG or PDF.")] = Path("partition.png"),
    as_json: Json = False,
) -> None:
    """Draw who has what: training records by client and label."""
    from fedceo.data import build_federation, draw_partition, label_counts
    from fedceo.experiment.file import load_experiment

    experiment = load_experiment(file, overrides or [], cell)
    federation = build_federation(experiment.data, experiment.seed)
    if as_json:
        print(json.dumps(label_counts(federation).tolist()))
        return
    draw_partition(federation, out)
    print(f"{federation.clients} clients of {federation.name}, partition {experiment.data.partition}: {out}")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List methods, models, data sets and experiment files."""
    from fedceo.terminal.inventory import inventory, show_inventory

    if as_json:
        print(json.dumps(inventory()))
    else:
        show_inventory(inventory())


@app.command()
def fields(
    section: Annotated[
        str | None, typer.Argument(help="A table such as train, or a method such as fedavg; left out: all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the fields of the experiment file: values, default and meaning of each."""
    from fedceo.terminal.fields import find_sections, show_fields

    found = find_sections(section)
    if as_json:
        print(json.dumps({name: [asdict(field) for field in each] for name, each in found.items()}))
    else:
        show_fields(found)


def unknown_option(error: NoSuchOption) -> str:
    """The message about an option that is none; it says how to set the field of that name, where the command can."""
    from fedceo.experiment.fields import places_of

    name = error.option_name.lstrip("-").replace("-", "_")
    places = places_of(name) or GUESSED.get(name, [])
    if places and error.ctx is not None and any("--set" in each.opts for each in error.ctx.command.params):
        fields = " or ".join(f"--set {place}=VALUE" for place in places)
        return f"No such option: {error.option_name}; that field is changed by {fields}"
    program = None if error.ctx is None else error.ctx.command
    if isinstance(program, RunFirst) and any(error.option_name in each.opts for each in program.commands["run"].params):
        return (
            f"No such option: {error.option_name} here; expected behind a command: fedceo run FILE {error.option_name}"
        )
    close = get_close_matches(error.option_name, error.possibilities or [], cutoff=0.75)
    return f"No such option: {error.option_name}" + (f"; did you mean {' or '.join(close)}?" if close else "")


def main() -> None:
    """The entry point: an error that a user can cause is one line and exit code 2."""
    notes = Notes(logging.WARNING)
    logging.getLogger("fedceo").addHandler(notes)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may hold bytes that are no letters
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except NoArgsIsHelpError as error:
        error.show()
    except NoSuchOption as error:
        note(unknown_option(error))
    except ClickException as error:
        note(" ".join(error.format_message().split()))
    except UsageError as error:
        note(str(error))
    except OSError as error:
        if error.errno not in NOT_OURS and error.filename is None:
            raise
        where = f"{error.filename}: " if error.filename else ""  # a full disk does not say which file
        note(f"{where}{error.strerror}")
    except Abort:
        sys.exit(130)
    finally:
        logging.getLogger("fedceo").removeHandler(notes)
    sys.exit(2)

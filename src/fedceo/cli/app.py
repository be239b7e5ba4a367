"""The commands: a few lines each, no logic. Errors a user can cause are one line and exit code 2."""

import errno
import io
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from click.exceptions import Abort, ClickException, NoArgsIsHelpError

from fedceo import __version__
from fedceo.cli import attack, recommend, release, report, studies
from fedceo.cli.data import app as data_app
from fedceo.cli.flower import app as flower_app
from fedceo.cli.options import CellName, Json, Overrides
from fedceo.cli.privacy import app as privacy_app
from fedceo.errors import UsageError

if TYPE_CHECKING:
    from fedceo.scale.cluster import Workers

NOT_OURS = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOTDIR, errno.EISDIR,
    errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip
"""Errors of a disk, its permissions or names on it, which a user can mend."""

app = typer.Typer(
    help="Federated learning under differential privacy, around FedCEO.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")
app.add_typer(privacy_app, name="privacy")
app.command()(studies.sweep)
app.command()(studies.tune)
app.command()(recommend.recommend)
app.command()(report.report)
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
def run(
    file: Annotated[Path | None, typer.Argument(help="An experiment file (TOML).")] = None,
    cell: CellName = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="A new folder for the run; left out: runs/NAME.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the unfinished run in this folder.")] = None,
    tensorboard: Annotated[bool, typer.Option(help="Write TensorBoard events into the run folder.")] = False,
    engine: Annotated[
        str, typer.Option(help="Where the cohort trains: here, or on ray workers; see --workers.")
    ] = "here",
    workers: Annotated[int | None, typer.Option(help="Ray workers; left out: one a core, or one a GPU.")] = None,
    ray_address: Annotated[str | None, typer.Option(help="HOST:PORT of a running Ray cluster, or auto.")] = None,
    gpus_per_worker: Annotated[
        float | None, typer.Option(help="0 to 1; left out: 1 where the device is a GPU.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run an experiment file, or go on with a run."""
    from fedceo.experiment.catalogue import experiment_files
    from fedceo.experiment.file import load_experiment
    from fedceo.simulation.folder import free_folder
    from fedceo.simulation.runs import resume as resume_run
    from fedceo.simulation.runs import run as run_experiment
    from fedceo.terminal.monitor import Meter, events
    from fedceo.terminal.progress import progress
    from fedceo.terminal.results import show_run

    place = elsewhere(engine, workers, ray_address, gpus_per_worker)
    if resume is not None:
        if file is not None or cell is not None or overrides or out is not None:
            raise UsageError("--resume: takes the folder alone, without FILE, --cell, --set or --out")
        folder = resume

        def work(**callbacks: Any) -> Any:
            return resume_run(folder, workers=place, **callbacks)

        experiment = load_experiment(folder / "experiment.toml") if (folder / "experiment.toml").exists() else None
    else:
        if file is None:
            known = ", ".join(map(str, experiment_files())) or "none, here or below experiments/"
            raise UsageError(f"FILE: which experiment? These are here: {known}")
        experiment = load_experiment(file, overrides or [], cell)
        folder = out or free_folder(Path("runs") / file.stem / (cell or ""))

        def work(**callbacks: Any) -> Any:
            return run_experiment(experiment, out=folder, workers=place, **callbacks)

    rounds, name = experiment.train.rounds if experiment else 0, "on Ray" if place else "training"
    aside = redirect_stdout(place.aside(sys.stderr)) if place else nullcontext()
    with aside, stopping() as should_stop, progress(rounds, name, quiet=as_json) as advance:
        watchers, meter = [advance, *([events(folder)] if tensorboard else [])], Meter()

        def tell(record: dict[str, Any]) -> None:
            record = meter.read(record)
            for watcher in watchers:
                watcher(record)

        watched = tensorboard or not as_json
        finished = work(on_start=meter.begin if watched else None, on_round=tell, should_stop=should_stop)
    if as_json:
        print(json.dumps({"folder": str(folder), "finished": finished.finished} | finished.result))
    else:
        show_run(finished, folder)
    if not finished.finished:
        sys.exit(130)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the run folders go.")] = Path("runs/demo"),
    as_json: Json = False,
) -> None:
    """The embedded default: FedCEO beside UDP-FedAvg beside FedAvg without noise, on handwritten digits."""
    from fedceo.experiment.catalogue import demo_experiments
    from fedceo.simulation.folder import free_folder
    from fedceo.simulation.runs import run as run_experiment
    from fedceo.terminal.progress import progress
    from fedceo.terminal.results import show_comparison, show_run

    folder = free_folder(out)
    runs = {}
    for name, experiment in demo_experiments().items():
        with stopping() as should_stop, progress(experiment.train.rounds, name, quiet=as_json) as advance:
            runs[name] = run_experiment(experiment, out=folder / name, on_round=advance, should_stop=should_stop)
        if not runs[name].finished:
            show_run(runs[name], folder / name)
            sys.exit(130)
    if as_json:
        print(json.dumps({name: each.result for name, each in runs.items()}))
    else:
        show_comparison(runs, folder)


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


def elsewhere(engine: str, count: int | None, address: str | None, gpus: float | None) -> "Workers | None":
    """The Ray workers that --engine and its companions ask for, if they do."""
    if engine == "ray":
        from fedceo.scale.cluster import Workers

        return Workers(count, address, gpus)
    if engine != "here":
        raise UsageError(f'--engine: {engine!r}, expected "here" or "ray"')
    for name, value in (("--workers", count), ("--ray-address", address), ("--gpus-per-worker", gpus)):
        if value is not None:
            raise UsageError(f"{name}: is for --engine ray")
    return None


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Ctrl-C ends the round instead of the program; a second one ends the program."""
    asked = False

    def ask(signal_number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        print("\nending this round; press Ctrl-C again to stop at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def refuse(words: str) -> None:
    """Print the one line; what would break it, or move the cursor, is written out: names may hold any character."""
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in words)
    print(f"fedceo: {shown}", file=sys.stderr)


def main() -> None:
    """The entry point: an error that a user can cause is one line and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may hold bytes that are no letters
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except NoArgsIsHelpError as error:
        error.show()
    except ClickException as error:
        refuse(" ".join(error.format_message().split()))
    except UsageError as error:
        refuse(str(error))
    except OSError as error:
        if error.errno not in NOT_OURS:
            raise
        where = f"{error.filename}: " if error.filename else ""  # a full disk does not say which file
        refuse(f"{where}{error.strerror}")
    except Abort:
        sys.exit(130)
    sys.exit(2)

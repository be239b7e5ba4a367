"""`fedceo run` and `fedceo demo`."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedceo.cli.notes import note
from fedceo.cli.options import (
    CellName,
    Device,
    Epsilon,
    Json,
    MethodName,
    Overrides,
    Rounds,
    Seed,
    new_folder,
    with_short_forms,
)
from fedceo.errors import UsageError

if TYPE_CHECKING:
    from fedceo.scale.cluster import Workers


def run(
    file: Annotated[Path | None, typer.Argument(help="An experiment file (TOML); with --more, a run.")] = None,
    cell: CellName = None,
    overrides: Overrides = None,
    rounds: Rounds = None,
    seed: Seed = None,
    epsilon: Epsilon = None,
    method: MethodName = None,
    device: Device = None,
    out: Annotated[Path | None, typer.Option(help="A new folder for the run; left out: runs/NAME.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the unfinished run in this folder.")] = None,
    more: Annotated[
        int | None,
        typer.Option(min=1, help="So many rounds more for the finished run in the folder FILE, into a new folder."),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option(help="Write TensorBoard events into the run folder, as --callback tensorboard does.")
    ] = False,
    callback: Annotated[
        list[str] | None,
        typer.Option(help="Tell of measurements: tensorboard, wandb, mlflow or module:Class; may be given often."),
    ] = None,
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
    from fedceo.simulation.extending import extend
    from fedceo.simulation.folder import RunFolder
    from fedceo.simulation.runs import resume as resume_run
    from fedceo.simulation.runs import run as run_experiment
    from fedceo.terminal.progress import Screen, progress
    from fedceo.terminal.results import NOT_FINITE, show_run

    place = elsewhere(engine, workers, ray_address, gpus_per_worker)
    changes = with_short_forms(overrides, rounds=rounds, seed=seed, epsilon=epsilon, method=method, device=device)
    if more is not None and resume is None:
        if file is None:
            raise UsageError("--more: is for a finished run, expected its folder too: fedceo run RUN --more N")
        file, resume = None, file
    if resume is not None:
        if file is not None or cell is not None or changes or (out is not None and more is None):
            raise UsageError("--resume: takes the folder alone, without FILE, --cell, --out, --set or its short forms")
        folder = resume if more is None else out or new_folder(resume.with_name(f"{resume.name}-more-{more}"))

        def work(**watching: Any) -> Any:
            if more is not None:
                return extend(resume, more, out=folder, workers=place, progress=False, **watching)
            return resume_run(resume, workers=place, progress=False, **watching)

        experiment = load_experiment(resume / "experiment.toml") if (resume / "experiment.toml").exists() else None
    else:
        if file is None:
            known = ", ".join(map(str, experiment_files())) or "none, here or below experiments/"
            raise UsageError(f"FILE: which experiment? These are here: {known}")
        experiment = load_experiment(file, changes, cell)
        folder = out or new_folder(Path("runs") / file.stem / (cell or ""))

        def work(**watching: Any) -> Any:
            return run_experiment(experiment, out=folder, workers=place, progress=False, **watching)

    total, name = (experiment.train.rounds if experiment else 0) + (more or 0), "on Ray" if place else "training"
    was_finished = resume is not None and RunFolder(folder).finished
    aside = redirect_stdout(place.aside(sys.stderr)) if place else nullcontext()
    with aside, stopping() as should_stop, progress(total, name, quiet=as_json) as advance:
        screen = [] if as_json else [Screen(advance)]
        named = [*(callback or []), *(["tensorboard"] if tensorboard else [])]
        finished = work(callbacks=[*screen, *named], should_stop=should_stop)
    if as_json:
        print(json.dumps({"folder": str(folder), "finished": finished.finished} | finished.result))
    else:
        show_run(finished, folder)
    if was_finished:
        note(f"{folder}: was finished already, after {finished.result['rounds']} rounds; nothing was run")
    if not finished.finished:
        sys.exit(130)
    if not finished.result.get("model_is_finite", True):
        note(f"{folder}: {NOT_FINITE}")
        sys.exit(1)


def demo(
    out: Annotated[Path, typer.Option(help="Where the run folders go.")] = Path("runs/demo"),
    as_json: Json = False,
) -> None:
    """The embedded default: FedCEO beside UDP-FedAvg beside FedAvg without noise, on handwritten digits."""
    from fedceo.experiment.catalogue import demo_experiments
    from fedceo.simulation.runs import run as run_experiment
    from fedceo.terminal.progress import Screen, progress
    from fedceo.terminal.results import show_comparison, show_run

    folder = new_folder(out)
    runs = {}
    for name, experiment in demo_experiments().items():
        with stopping() as should_stop, progress(experiment.train.rounds, name, quiet=as_json) as advance:
            screen = [] if as_json else [Screen(advance)]
            runs[name] = run_experiment(
                experiment, out=folder / name, callbacks=screen, should_stop=should_stop, progress=False
            )
        if not runs[name].finished:
            show_run(runs[name], folder / name)
            sys.exit(130)
    if as_json:
        print(json.dumps({name: each.result for name, each in runs.items()}))
    else:
        show_comparison(runs, folder)


def elsewhere(engine: str, count: int | None, address: str | None, gpus: float | None) -> "Workers | None":
    """The Ray workers that --engine and its companions ask for, if they do."""
    if engine == "ray":
        from fedceo.scale.cluster import Workers

        return Workers(count, address, gpus)
    if engine != "here":
        how = f"; how clients are trained: --set train.engine={engine}" if engine in ("auto", "loop", "batched") else ""
        raise UsageError(f'--engine: {engine!r}, expected "here" or "ray"{how}')
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

"""`fedceo sweep` and `fedceo tune`."""

import itertools
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedceo.cli.notes import note
from fedceo.cli.options import Device, Epsilon, Json, MethodName, Overrides, Rounds, Seed, with_short_forms
from fedceo.errors import UsageError

Cells = Annotated[
    list[str] | None,
    typer.Option(
        "--cell", help="Only these cells of a grid: a name, or a pattern such as 'sigma-2.0/*'. May be repeated."
    ),
]

Stack = Annotated[
    int | None,
    typer.Option(
        min=1, help="Train so many runs at a time as one program on a GPU, each with the result it has alone."
    ),
]


def sweep(
    target: Annotated[Path, typer.Argument(help="An experiment file, or a folder; every cell is run.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each, with its own seed and those after it.")] = 1,
    overrides: Overrides = None,
    rounds: Rounds = None,
    epsilon: Epsilon = None,
    method: MethodName = None,
    device: Device = None,
    grid: Annotated[list[str] | None, typer.Option(help="Every value in turn: section.field=\\[a, b].")] = None,
    only: Cells = None,
    out: Annotated[Path | None, typer.Option(help="Where the runs go; left out: runs/sweep/NAME.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time; left out: what the machine can.")] = None,
    stack: Stack = None,
    as_json: Json = False,
) -> None:
    """Run experiments with several seeds, skip what is done, and write one table."""
    from fedceo.simulation.durable import make_folder, write_whole
    from fedceo.studies.cells import find_cells
    from fedceo.studies.results import results_of
    from fedceo.studies.sweep import sweep as run_sweep
    from fedceo.studies.table import rows_of, to_csv, to_latex, to_markdown
    from fedceo.terminal.progress import progress
    from fedceo.terminal.studies import show_sweep

    out = out or Path("runs") / "sweep" / (target.stem or "here")
    changes = with_short_forms(overrides, rounds=rounds, epsilon=epsilon, method=method, device=device)
    cells = find_cells(target, seeds, changes, grid or [], out, only or [])
    errors: dict[int, str] = {}
    with progress(len(cells), "runs", quiet=as_json, of_rounds=False) as advance:
        count = itertools.count(1)

        def on_cell(cell: Any, result: dict[str, Any] | None, error: str | None) -> None:
            if error is not None:
                errors[cells.index(cell)] = error
            advance({"round": next(count)})

        results = run_sweep(cells, jobs, on_cell, stack)
    rows = rows_of(cells, results)
    failed = [f"{cells[number].folder}: {error}" for number, error in sorted(errors.items())]
    make_folder(out)
    write_whole(out / "results.json", json.dumps(results_of(cells, results, errors)).encode())
    for suffix, text in (("csv", to_csv(rows)), ("md", to_markdown(rows)), ("tex", to_latex(rows))):
        write_whole(out / f"table.{suffix}", text.encode())
    if as_json:
        print(json.dumps({"folder": str(out), "rows": rows, "failed": failed}))
    else:
        show_sweep(rows, out)
    for line in failed:
        print(f"fedceo: {line}", file=sys.stderr)
    if failed:
        sys.exit(1)


def tune(
    target: Annotated[Path, typer.Argument(help="An experiment file, or a folder; every cell is tuned alike.")],
    trials: Annotated[int | None, typer.Option(min=1, help="Settings tried for each method; left out: 12.")] = None,
    grid: Annotated[list[str] | None, typer.Option(help="Try these instead: section.field=\\[a, b].")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of a trial, with --grid; left out: all.")] = None,
    finalists: Annotated[int, typer.Option(min=1, help="Short trials run again at full length, the best decides.")] = 1,
    only: Cells = None,
    overrides: Overrides = None,
    seed: Seed = None,
    epsilon: Epsilon = None,
    method: MethodName = None,
    device: Device = None,
    show_space: Annotated[
        bool, typer.Option("--show-space", help="Print the values to be tried, and try none.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Where the trials go; left out: runs/tune/NAME.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Trials at a time, with --grid.")] = None,
    stack: Stack = None,
    as_json: Json = False,
) -> None:
    """Choose each method's settings on the validation records, with equal budgets, and write tuned.toml."""
    from fedceo.studies.cells import combinations, find_experiments
    from fedceo.studies.space import beyond_edges, searched
    from fedceo.studies.tune import tune as tune_one
    from fedceo.studies.tune import tune_on_grid
    from fedceo.terminal.progress import progress
    from fedceo.terminal.studies import show_space as print_space
    from fedceo.terminal.studies import show_tuned

    if not grid and (rounds is not None or finalists > 1 or jobs is not None or stack is not None):
        raise UsageError(
            "--rounds, --finalists, --jobs, --stack: only with --grid, whose trials do not wait for each other"
        )
    if grid and trials is not None:
        raise UsageError("--trials: --grid says which trials there are")
    trials = trials or 12
    out = out or Path("runs") / "tune" / (target.stem or "here")
    changes = with_short_forms(overrides, seed=seed, epsilon=epsilon, method=method, device=device)
    experiments = find_experiments(target, changes, only or [])
    if show_space:
        spaces = {name: searched(experiment, grid or []) for name, experiment in experiments.items()}
        print(json.dumps(spaces)) if as_json else print_space(spaces)
        return
    tuned: dict[str, tuple[Any, float]] = {}
    if grid:
        total = len(experiments) * (len(combinations(grid)) + (finalists if finalists > 1 else 0))
        with progress(total, "trials", quiet=as_json, of_rounds=False) as advance:
            count = itertools.count(1)

            failed: list[str] = []

            def on_cell(cell: Any, result: dict[str, Any] | None, error: str | None) -> None:
                if error is not None:
                    failed.append(f"{cell.folder}: {error}")
                advance({"round": next(count)})

            tuned = tune_on_grid(experiments, grid, out, rounds, finalists, jobs, on_cell, stack)
        for line in failed:
            print(f"fedceo: {line}", file=sys.stderr)
    else:
        for name, experiment in experiments.items():
            scores: list[float] = []
            with progress(trials, name, quiet=as_json, of_rounds=False) as advance:

                def on_trial(number: int, chosen: dict[str, Any], score: float) -> None:
                    scores.append(score)  # noqa: B023 - called before the loop goes on
                    advance({"round": number + 1})

                tuned[name] = tune_one(experiment, trials, out / name, on_trial), max(scores)
    found = {
        name: {"validation_accuracy": score, "file": str(out / name / "tuned.toml"), "note": experiment.note}
        for name, (experiment, score) in tuned.items()
    }
    if as_json:
        print(json.dumps(found))
    else:
        show_tuned(found)
    for name, (experiment, _) in tuned.items():
        for field, wider in beyond_edges(searched(experiment, grid or []), experiment).items():
            widened = f"fedceo tune {target} --grid '{wider}'"
            note(f"{name}: the best {field} is at the edge of what was tried; look beyond it with: {widened}")

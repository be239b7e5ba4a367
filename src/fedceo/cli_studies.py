"""`fedceo sweep` and `fedceo tune`."""

import itertools
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedceo.errors import UsageError

Overrides = Annotated[list[str] | None, typer.Option("--set", help="Change a field of all: section.field=value.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def sweep(
    target: Annotated[Path, typer.Argument(help="An experiment file, or a folder of them.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each, with its own seed and those after it.")] = 1,
    overrides: Overrides = None,
    grid: Annotated[list[str] | None, typer.Option(help="Every value in turn: section.field=[a, b].")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the runs go; left out: runs/sweep/NAME.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time; left out: what the machine can.")] = None,
    as_json: Json = False,
) -> None:
    """Run experiments with several seeds, skip what is done, and write one table."""
    from fedceo import screen
    from fedceo.simulation.folder import write_whole
    from fedceo.studies.cells import find_cells
    from fedceo.studies.sweep import sweep as run_sweep
    from fedceo.studies.table import rows_of, to_csv, to_latex, to_markdown

    out = out or Path("runs") / "sweep" / (target.stem or "here")
    cells = find_cells(target, seeds, overrides or [], grid or [], out)
    failed: list[str] = []
    with screen.progress(len(cells), "runs", quiet=as_json) as advance:
        count = itertools.count(1)

        def on_cell(cell: Any, result: dict[str, Any] | None, error: str | None) -> None:
            if error is not None:
                failed.append(f"{cell.folder}: {error}")
            advance({"round": next(count)})

        rows = rows_of(cells, run_sweep(cells, jobs, on_cell))
    for suffix, text in (("csv", to_csv(rows)), ("md", to_markdown(rows)), ("tex", to_latex(rows))):
        write_whole(out / f"table.{suffix}", text.encode())
    if as_json:
        print(json.dumps({"folder": str(out), "rows": rows, "failed": failed}))
    else:
        screen.show_sweep(rows, out)
    for line in failed:
        print(f"fedceo: {line}", file=sys.stderr)
    if failed:
        sys.exit(1)


def tune(
    target: Annotated[Path, typer.Argument(help="An experiment file, or a folder of them, each tuned alike.")],
    trials: Annotated[int, typer.Option(min=1, help="Settings tried for each method, the same number for all.")] = 12,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Where the trials go; left out: runs/tune/NAME.")] = None,
    as_json: Json = False,
) -> None:
    """Choose each method's settings on the validation records, with equal budgets, and write tuned.toml."""
    from fedceo import screen
    from fedceo.config import load_experiment
    from fedceo.studies.cells import experiment_files
    from fedceo.studies.tune import tune as tune_one

    out = out or Path("runs") / "tune" / (target.stem or "here")
    base = target.parent if target.is_file() else target
    found: dict[str, dict[str, Any]] = {}
    for file in experiment_files(target):
        experiment = load_experiment(file, overrides or [])
        name = str(file.relative_to(base).with_suffix(""))
        scores: list[float] = []
        with screen.progress(trials, name, quiet=as_json) as advance:

            def on_trial(number: int, chosen: dict[str, Any], score: float) -> None:
                scores.append(score)  # noqa: B023 - called before the loop goes on
                advance({"round": number + 1})

            tuned = tune_one(experiment, trials, out / name, on_trial)
        if not scores:
            raise UsageError(f"{file}: no trial was run")
        found[name] = {"validation_accuracy": max(scores), "file": str(out / name / "tuned.toml"), "note": tuned.note}
    if as_json:
        print(json.dumps(found))
    else:
        screen.show_tuned(found)

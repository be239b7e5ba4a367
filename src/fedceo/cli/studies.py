"""`fedceo sweep` and `fedceo tune`."""

import itertools
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedceo.cli.edges import warn_of_edges, widened
from fedceo.cli.notes import note
from fedceo.cli.options import Device, Epsilon, Json, MethodName, Overrides, Rounds, Seed, check_out, with_short_forms
from fedceo.errors import UsageError

if TYPE_CHECKING:
    from fedceo.accounting.trials import Trials

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
    grid: Annotated[list[str] | None, typer.Option(help="Every value in turn: section.field=[a, b].")] = None,
    only: Cells = None,
    out: Annotated[Path | None, typer.Option(help="Where the runs go; left out: runs/sweep/TARGET.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time; left out: what the machine can.")] = None,
    stack: Stack = None,
    fill: Annotated[
        Path | None, typer.Option(help="Run only what this results file lacks, and put every run into it when done.")
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="With --fill: print what the file lacks and its cost, and run nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run experiments with several seeds, skip what is done, and write one table."""
    from fedceo.report.loading import group_runs, load_runs
    from fedceo.report.table import paper_table
    from fedceo.report.writers import to_latex
    from fedceo.simulation.durable import make_folder, write_whole
    from fedceo.studies.cells import default_folder, find_cells
    from fedceo.studies.filling import add_entry, expected_seconds, lacking, read_entries
    from fedceo.studies.results import results_of
    from fedceo.studies.sweep import sweep as run_sweep
    from fedceo.studies.table import rows_of, to_csv, to_markdown
    from fedceo.tasks import metric_of
    from fedceo.terminal.progress import progress
    from fedceo.terminal.studies import show_lacking, show_sweep

    if missing and fill is None:
        raise UsageError("--missing: expected with --fill, which names the results file")
    changes = with_short_forms(overrides, rounds=rounds, epsilon=epsilon, method=method, device=device)
    out = out or default_folder("sweep", target, changes)
    check_out(out)
    cells = find_cells(target, seeds, changes, grid or [], out, only or [])
    if fill is not None:
        entries = read_entries(fill)
        cells = lacking(cells, entries, fill)
        if missing or not cells:
            lacks = [
                {"name": cell.name, "seed": cell.experiment.seed, "seconds": expected_seconds(cell, entries)}
                for cell in cells
            ]
            print(json.dumps({"file": str(fill), "lacking": lacks})) if as_json else show_lacking(lacks, fill)
            return
    errors: dict[int, str] = {}
    with progress(len(cells), "runs", quiet=as_json, of_rounds=False) as advance:
        count = itertools.count(1)

        def on_cell(cell: Any, result: dict[str, Any] | None, error: str | None) -> None:
            if error is not None:
                errors[cells.index(cell)] = error
            elif fill is not None:
                add_entry(fill, *results_of([cell], [result], {}))
            advance({"round": next(count)})

        results = run_sweep(cells, jobs, on_cell, stack)
    rows = rows_of(cells, results)
    failed = [f"{cells[number].folder}: {error}" for number, error in sorted(errors.items())]
    make_folder(out)
    write_whole(out / "results.json", json.dumps(results_of(cells, results, errors)).encode())
    write_whole(out / "table.csv", to_csv(rows).encode())
    write_whole(out / "table.md", to_markdown(rows).encode())
    done = [cell.folder for cell, result in zip(cells, results, strict=True) if result is not None]
    if len({metric_of(result).name for result in results if result is not None}) == 1:  # a table is of one metric
        write_whole(out / "table.tex", to_latex(paper_table(group_runs(load_runs(done, any_data=True)))).encode())
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
    trials: Annotated[
        int | None, typer.Option(min=1, help="Settings tried for each method, on average with --private; left out: 12.")
    ] = None,
    trials_per_setting: Annotated[
        int | None, typer.Option(min=1, help="Trials for each setting that a method has to tune, instead of --trials.")
    ] = None,
    grid: Annotated[list[str] | None, typer.Option(help="Try these instead: section.field=[a, b].")] = None,
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
    out: Annotated[Path | None, typer.Option(help="Where the trials go; left out: runs/tune/TARGET.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Trials at a time, with --grid or --private.")] = None,
    stack: Stack = None,
    private: Annotated[bool, typer.Option("--private", help="A random number of trials, at a known epsilon.")] = False,
    law: Annotated[str, typer.Option(help="--private: geometric, poisson or negative-binomial.")] = "geometric",
    shape: Annotated[float | None, typer.Option(help="--private: eta of the negative binomial law.")] = None,
    public_validation: Annotated[
        bool, typer.Option("--public-validation", help="--private: validation records are nobody's secret.")
    ] = False,
    score_noise: Annotated[
        float | None, typer.Option(help="--private: deviation of the noise of accuracies, 0 to 1; left out: 0.02.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose each method's settings on the validation records, with equal budgets, and write tuned.toml."""
    from fedceo.studies.cells import default_folder, find_experiments
    from fedceo.studies.space import searched
    from fedceo.terminal.studies import show_space as print_space

    if not (grid or private) and jobs is not None:
        raise UsageError("--jobs: only with --grid or --private, whose trials do not wait for each other")
    if not grid and (rounds is not None or finalists > 1):
        raise UsageError("--rounds, --finalists: only with --grid")
    if stack is not None and (private or not grid):
        raise UsageError("--stack: only with --grid, whose trials do not wait for each other")
    if not private and (law != "geometric" or shape is not None or public_validation or score_noise is not None):
        raise UsageError("--law, --shape, --public-validation, --score-noise: only with --private")
    if private and (rounds is not None or finalists > 1):
        raise UsageError("--rounds, --finalists: not with --private, whose trials are whole runs")
    if trials_per_setting is not None and (grid or private or trials is not None):
        raise UsageError("--trials-per-setting: not with --trials, --grid or --private")
    if grid and trials is not None and not private:
        raise UsageError("--trials: --grid says which trials there are")
    changes = with_short_forms(overrides, seed=seed, epsilon=epsilon, method=method, device=device)
    options = [part for change in changes for part in ("--set", change)]
    options += [part for cell in only or [] for part in ("--cell", cell)]
    options += ["--rounds", str(rounds)] if rounds else []
    options += ["--finalists", str(finalists)] if finalists > 1 else []
    options += ["--out", str(out)] if out else []
    out = out or default_folder("tune", target, changes)
    check_out(out)
    experiments = find_experiments(target, changes, only or [])
    if show_space:
        spaces = {name: searched(experiment, grid or []) for name, experiment in experiments.items()}
        print(json.dumps(spaces)) if as_json else print_space(spaces)
    elif private:
        from fedceo.accounting.trials import Trials

        noise = _noise_of_scores(public_validation, score_noise)
        _tune_privately(experiments, grid or [], Trials(law, trials or TRIALS, shape), noise, out, jobs, as_json)
    elif grid:
        tuned = _tune_on_grid(experiments, grid, out, rounds, finalists, jobs, stack, as_json)
        _show_tuned(tuned, out, as_json)
        warn_of_edges(tuned, grid, lambda name, wider: [str(target), *options, *widened(grid, wider)])
    else:
        settings = {name: len(searched(experiment, [])) for name, experiment in experiments.items()}
        if len(set(settings.values())) > 1 and trials_per_setting is None:
            note(
                f"{min(settings.values())} to {max(settings.values())} settings are tuned with as many trials; "
                "--trials-per-setting gives every setting as many"
            )
        budgets = {name: (trials_per_setting or 0) * count or trials or TRIALS for name, count in settings.items()}
        tuned = _search(experiments, budgets, out, as_json)
        _show_tuned(tuned, out, as_json)
        warn_of_edges(tuned, [], lambda name, wider: [str(out / name / "tuned.toml"), "--grid", wider])


TRIALS = 12
"""The trials of a search, or their mean number in a private study, where none is given."""
SCORE_NOISE = 0.02
"""The standard deviation of the noise of scores in a private study, where none is given."""
Tuned = dict[str, tuple[Any, float]]
"""Experiments with their best settings, and the validation accuracy of each, by name."""


def _tune_on_grid(
    experiments: dict[str, Any],
    grid: list[str],
    out: Path,
    rounds: int | None,
    finalists: int,
    jobs: int | None,
    stack: int | None,
    quiet: bool,
) -> Tuned:
    from fedceo.studies.cells import combinations
    from fedceo.studies.tune import tune_on_grid
    from fedceo.terminal.progress import progress

    total = len(experiments) * (len(combinations(grid)) + (finalists if finalists > 1 else 0))
    failed: list[str] = []
    with progress(total, "trials", quiet=quiet, of_rounds=False) as advance:
        count = itertools.count(1)

        def on_cell(cell: Any, result: dict[str, Any] | None, error: str | None) -> None:
            if error is not None:
                failed.append(f"{cell.folder}: {error}")
            advance({"round": next(count)})

        tuned = tune_on_grid(experiments, grid, out, rounds, finalists, jobs, on_cell, stack)
    for line in failed:
        print(f"fedceo: {line}", file=sys.stderr)
    return tuned


def _search(experiments: dict[str, Any], trials: dict[str, int], out: Path, quiet: bool) -> Tuned:
    from fedceo.studies.tune import tune as tune_one
    from fedceo.terminal.progress import progress

    tuned: Tuned = {}
    for name, experiment in experiments.items():
        scores: list[float] = []
        with progress(trials[name], name, quiet=quiet, of_rounds=False) as advance:

            def on_trial(number: int, chosen: dict[str, Any], score: float) -> None:
                scores.append(score)  # noqa: B023 - called before the loop goes on
                advance({"round": number + 1})

            tuned[name] = tune_one(experiment, trials[name], out / name, on_trial), max(scores)
    return tuned


def _show_tuned(tuned: Tuned, out: Path, as_json: bool) -> None:
    from fedceo.tasks import main_metric
    from fedceo.terminal.studies import show_tuned

    metrics = {name: main_metric(experiment.task) for name, (experiment, _) in tuned.items()}
    found = {
        name: {
            **metrics[name].about,
            f"validation_{metrics[name].name}": metrics[name].value_of(score),
            "file": str(out / name / "tuned.toml"),
            "note": experiment.note,
            "epsilon_of_tuning": "not counted",
        }
        for name, (experiment, score) in tuned.items()
    }
    if as_json:
        print(json.dumps(found))
    else:
        show_tuned(found)


def _noise_of_scores(public_validation: bool, given: float | None) -> float | None:
    """The standard deviation of the noise of scores; None where validation records are public."""
    if public_validation and given is not None:
        raise UsageError("--score-noise: scores of public validation records carry none")
    if given is not None and not 0 < given <= 1:
        raise UsageError(f"--score-noise: {given:g}, expected above 0 and at most 1")
    return None if public_validation else given or SCORE_NOISE


def _tune_privately(
    experiments: dict[str, Any],
    grid: list[str],
    trials: "Trials",
    score_noise: float | None,
    out: Path,
    jobs: int | None,
    as_json: bool,
) -> None:
    from fedceo.studies.private import Question, tune_privately
    from fedceo.studies.tune import settings_of
    from fedceo.tasks import main_metric
    from fedceo.terminal.progress import waiting
    from fedceo.terminal.studies import show_study

    if len(experiments) > 1:
        raise UsageError(f"--private: {len(experiments)} experiments, expected one: studies of the same records add up")
    (experiment,) = experiments.values()
    question = Question(experiment, settings_of(experiment, grid), trials, score_noise)
    with nullcontext() if as_json else waiting("trials are run; how many is a secret"):
        study = tune_privately(question, out, jobs)
    found = {
        "file": str(out / "tuned.toml"),
        "folder": None if study.folder is None else str(study.folder),
        **main_metric(experiment.task).about,
        "score": study.score,
        "validation": question.validation,
        "rows": [row.as_dict() for row in study.rows],
    }
    if as_json:
        print(json.dumps(found))
    else:
        show_study(found)

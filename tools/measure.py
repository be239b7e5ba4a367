"""Fills a results file: every cell of an experiment file is tuned with equally many trials, then run with more seeds.

    python tools/measure.py experiments/silos/cifar10-100.toml --cell 'epsilon-5/*/dirichlet-0.3' --jobs 14
    python tools/measure.py experiments/beyond/features/cifar10-1000.toml --jobs 8 --seeds 0,1,2,3,4 \\
        --grid 'train.learning_rate=[0.01, 0.02, 0.05, 0.1, 0.2]' --grid 'privacy.clip=[0.05, 0.1, 0.2, 0.5, 1.0]'

A trial is a whole run with seed 0. Settings are chosen on validation records, never on the test set: those of --grid,
or for experiments/silos the learning rate and the one setting of a method, by P-dist (evaluation.choose_by in the
file). What the results file has already is not run again. Every cell is written as soon as it is done, and none is
begun after --seconds: a long table can be made in pieces.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from fnmatch import fnmatchcase
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Any

import torch

from fedceo.data import build_federation
from fedceo.experiment.file import Experiment
from fedceo.experiment.sections import Model
from fedceo.simulation.durable import write_whole
from fedceo.simulation.preparing import prepare
from fedceo.simulation.runs import OnStart, Run, run
from fedceo.simulation.stacked import run_stacked
from fedceo.studies.cells import combinations, find_experiments
from fedceo.studies.filling import add_entry, read_entries
from fedceo.studies.results import curves_of, entry_of
from fedceo.studies.tune import changed, note_of, validation_score

SEEDS = "1,2,3"
"""Seeds of the runs that are reported, unless others are given; trials have seed 0."""
STACK = 10 if torch.cuda.is_available() else 1
"""Trials that are trained as one program: on a GPU many, on a CPU, where that gains nothing, one after another."""
RATES = [0.03, 0.1, 0.3, 1.0]
MANY_RATES = [0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2]
MANY_RATES += [0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0]
WITHOUT_SETTINGS = ("local", "fedavg")
"""Methods that have nothing but the rate to tune; they have as many trials as the others."""
PULLS = [0.03, 0.1, 0.3, 1.0, 3.0]
OWN_RATES = [0.01, 0.03, 0.1, 0.3, 1.0]
STRENGTHS = [0.03, 0.1, 0.3, 1.0, 3.0]
SETTINGS: dict[str, tuple[str, list[Any]]] = {
    "fedavg-finetune": ("method.home_rounds", [1, 3, 8, 15, 25]),
    "mr-mtl": ("method.strength", PULLS),
    "ditto": ("method.strength", PULLS),
    "ppsgd": ("method.personal_learning_rate", OWN_RATES),
    "centaur": ("method.head_learning_rate", OWN_RATES),
    "fedceo": ("method.strength", STRENGTHS),
    "fedceo-spare-mean": ("method.strength", STRENGTHS),
    "fedceo-damp": ("method.alpha", [0.1, 0.25, 0.5, 0.75, 1.0]),
    "fedceo-damp-mean": ("method.alpha", [0.1, 0.25, 0.5, 0.75, 1.0]),
}
"""The one setting of a method besides its rate, by the method's name in the file."""

Found = tuple[str, list[dict[str, Any]], list[dict[str, Any]]]
"""A cell, the entries of its runs, and its trials."""


def grid_of(method: str) -> list[str]:
    """The trials of a method as `fedceo tune --grid` takes them; for one setting held fixed, the rates alone."""
    rates = MANY_RATES if method in WITHOUT_SETTINGS else RATES
    settings = [f"{field}={values}" for field, values in [SETTINGS[method]]] if method in SETTINGS else []
    return [f"train.learning_rate={rates}", *settings]


def measure(
    file: Path, cell: str, overrides: Sequence[str], grid: Sequence[str], seeds: Sequence[int], deadline: float
) -> Found | None:
    """Tune a cell and run it with these seeds; None after the deadline."""
    if time.time() > deadline:
        return None
    experiment, settings = find_experiments(file, overrides, [cell])[cell], combinations(grid)
    hold(experiment, [experiment.seed, *seeds])
    at_the_end = {"evaluation.every": experiment.train.rounds}  # all that a trial is chosen by
    tried = [changed(experiment, values | at_the_end) for values in settings]
    runs = run_all(tried)
    scores = [validation_score(experiment, run.history[-1]) if isinstance(run, Run) else -inf for run in runs]
    best = max(range(len(scores)), key=scores.__getitem__)
    failed = [run for run in runs if isinstance(run, str)]
    if len(failed) == len(runs):
        raise RuntimeError(f"no trial came to an end: {failed[0]}")
    note = note_of(len(tried), settings[best]) + (f"; {len(failed)} failed" if failed else "")
    tuned = changed(experiment, settings[best]).model_copy(update={"note": note})
    reported = [tuned.model_copy(update={"seed": seed}) for seed in seeds]
    entries = [entry_of(cell, *each) for each in zip(reported, map(told, run_all(reported)), strict=True)]
    shown = [score if isfinite(score) else None for score in scores]
    trials = [values | {"validation_accuracy": score} for values, score in zip(settings, shown, strict=True)]
    return cell, entries, trials


def run_all(experiments: Sequence[Experiment]) -> list[Run | str]:
    """The runs of experiments of one kind, or their errors; in memory, for nothing of them is kept but numbers."""
    found: dict[int, Run | str] = {}
    for number, outcome in run_stacked([partial(_run, each) for each in experiments], STACK):
        try:
            found[number] = outcome()
        except Exception as error:  # one that fails must not take the others with it
            found[number] = f"{error}".partition("\n")[0] or type(error).__name__
    return [found[number] for number in range(len(experiments))]


def _run(experiment: Experiment, on_start: OnStart) -> Run:
    return run(experiment, on_start=on_start, progress=False)


def told(run: Run | str) -> dict[str, Any]:
    """What a results file says of a run beside its experiment."""
    return {"error": run} if isinstance(run, str) else {"result": run.result, "curves": curves_of(run.history)}


HELD: dict[Any, Any] = {}
"""What a process holds from cell to cell, so that nothing is read twice: federations, and a run with each model."""


def hold(experiment: Experiment, seeds: Sequence[int]) -> None:
    """Hold what runs of the experiment read."""
    for seed in seeds:
        HELD[experiment.data, seed] = build_federation(experiment.data, seed)
    reads = _reads(experiment)
    if reads not in HELD:
        HELD[reads] = prepare(experiment)
        HELD[reads].context.make_ready()
        HELD[reads].evaluator.measure(HELD[reads].state.weights)  # which brings test records to the device


def _reads(experiment: Experiment) -> tuple[str | None, Model]:
    return experiment.data.name, experiment.model


def warm_up(file: Path, cell: str, overrides: Sequence[str]) -> None:
    """Hold what a cell reads, which leaves features in the cache for all other processes."""
    hold(find_experiments(file, overrides, [cell])[cell], [])


def in_order(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The names that match the patterns, those of the first pattern first."""
    chosen = [name for pattern in patterns for name in names if fnmatchcase(name, pattern)]
    return list(dict.fromkeys(chosen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--cell", action="append", help="a pattern of cells; those of the first are run first")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="section.field=value, for all")
    parser.add_argument("--grid", action="append", help="section.field=[value, ...]; left out: those of the silos")
    parser.add_argument("--seeds", default=SEEDS, help="seeds of the runs that are reported")
    parser.add_argument("--out", type=Path, help="the results file; left out: where the file's own results are")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no cell is begun")
    given = parser.parse_args()
    out = given.out or Path("results", *given.file.with_suffix(".json").parts[1:])
    seeds = [int(seed) for seed in given.seeds.split(",")]
    known = find_experiments(given.file, given.overrides)
    have = {(each["name"], each["seed"]) for each in read_entries(out) if "result" in each}
    names = [
        name for name in in_order(list(known), given.cell or ["*"]) if any((name, seed) not in have for seed in seeds)
    ]
    if not names:
        print(f"{out}: has all of these")
        return
    begun, deadline = time.time(), time.time() + given.seconds
    trials_file = out.with_suffix(".trials.json")
    trials = json.loads(trials_file.read_text()) if trials_file.exists() else {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        kinds = {_reads(known[name]): name for name in reversed(names)}
        for warmed in [pool.submit(warm_up, given.file, name, given.overrides) for name in kinds.values()]:
            warmed.result()
        futures = {
            pool.submit(
                measure, given.file, name, given.overrides, given.grid or grid_of(name.split("/")[1]), seeds, deadline
            ): name
            for name in names
        }
        left = 0
        for count, future in enumerate(as_completed(futures), 1):
            if future.exception() is not None:
                print(f"{futures[future]}: {future.exception()}", file=sys.stderr, flush=True)
                continue
            found = future.result()
            if found is None:
                left += 1
                continue
            name, entries, tried = found
            for entry in entries:
                add_entry(out, entry)
            trials[name] = tried
            write_whole(trials_file, (json.dumps(dict(sorted(trials.items()))) + "\n").encode())
            print(f"{count}/{len(names)} {time.time() - begun:.0f} s  {name}  {_shown(entries)}", flush=True)
    print(f"{out}: {left} of {len(names)} cells are left" if left else f"{out}: done")


def _shown(entries: Sequence[dict[str, Any]]) -> str:
    done = [each["result"]["accuracy"] for each in entries if "result" in each]
    shown = [
        f"{words} {', '.join(f'{100 * each[name]:.1f}' for each in done)}"
        for words, name in (("P-dist", "distribution_accuracy_last"), ("last", "last"), ("average", "average"))
        if done and done[0].get(name) is not None
    ]
    return f"{'  '.join(shown)}  {entries[0]['experiment'].get('note', '').partition(' over ')[2]}"


if __name__ == "__main__":
    main()

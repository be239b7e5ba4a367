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
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from fedceo.simulation.durable import write_whole
from fedceo.simulation.preparing import prepare
from fedceo.studies.cells import Cell, find_experiments
from fedceo.studies.filling import add_entry, read_entries
from fedceo.studies.results import results_of
from fedceo.studies.sweep import sweep
from fedceo.studies.tune import tune_on_grid

SEEDS = "1,2,3"
"""Seeds of the runs that are reported, unless others are given; trials have seed 0."""
STACK = 25 if torch.cuda.is_available() else 1
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
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        experiments = find_experiments(file, overrides, [cell])
        ((tuned, _),) = tune_on_grid(experiments, grid, out, stack=STACK).values()
        trials = json.loads((out / "trials.json").read_text())[cell]
        cells = [Cell(cell, tuned.model_copy(update={"seed": seed}), out / f"seed-{seed}") for seed in seeds]
        errors: dict[int, str] = {}

        def on_cell(done: Cell, result: dict[str, Any] | None, error: str | None) -> None:
            if error is not None:
                errors[cells.index(done)] = error

        results = sweep(cells, on_cell=on_cell, stack=STACK)
        return cell, results_of(cells, results, errors), trials


def warm_up(file: Path, cell: str, overrides: Sequence[str]) -> None:
    """Prepare one run, which leaves features in the cache for all others."""
    prepare(find_experiments(file, overrides, [cell])[cell])


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
        pool.submit(warm_up, given.file, names[0], given.overrides).result()
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

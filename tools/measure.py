"""Fills a results file: every cell of an experiment file is tuned by the same rule, then run with more seeds.

    python tools/measure.py experiments/silos/cifar10-100.toml --cell 'epsilon-5/*/dirichlet-0.3' --jobs 14
    python tools/measure.py experiments/beyond/features/cifar10-1000.toml --jobs 8 --seeds 1,2,3,4,5
    python tools/measure.py mine.toml --grid 'train.learning_rate=[0.01, 0.03, 0.1]' --out mine.json

A trial is a whole run with seed 0, which no reported run has: the best of many runs is lucky. Settings are chosen on
validation records, never on the test set: those of --grid, or of pages/trial_grids.py, which also says when a grid
grows. What the results and trials files have already is not run again, and must be of the experiment as it is now; a
cell whose trials chose an end of their grid is tuned further. A cell with a trial that failed is not written: it would
not be tuned like the others. Every cell is written as soon as it is done, none is begun after --seconds. Trials of a
cell that is not done yet stand in RESULTS.unfinished.jsonl, so that whoever stops loses one run at most.
"""

import argparse
import hashlib
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from math import isfinite
from operator import itemgetter
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
from fedceo.studies.cells import combinations as parse_combinations
from fedceo.studies.cells import find_experiments
from fedceo.studies.filling import add_entry, difference, read_entries, remove_entries
from fedceo.studies.results import curves_of, entry_of
from fedceo.studies.tune import changed, note_of, validation_score

sys.path.append(str(Path(__file__).resolve().parent / "pages"))  # pages show what the grids have
from trial_grids import Changes, Grid, combinations, grown, joined, silos_grid, user_level_grid

SEEDS = "1,2,3"
"""Seeds of the runs that are reported, unless others are given; trials have seed 0."""
STACK = 10 if torch.cuda.is_available() else 1
"""Trials that are trained as one program: on a GPU many, on a CPU, where that gains nothing, one after another."""
SCORE = "validation_accuracy"


@dataclass(frozen=True)
class Job:
    """A cell that is to be tuned, and run with some seeds.

    Attributes:
        grid: the values that are tried, and more at ends at which the best lies.
        tried: trials of an earlier start, each with its settings and score.
        have: the runs that the results file has: the settings and seed of each.
        unfinished: where trials are noted as soon as they are done.
    """

    file: Path
    cell: str
    overrides: Sequence[str]
    grid: Grid
    tried: Sequence[Changes]
    seeds: Sequence[int]
    have: Sequence[tuple[Changes, int]]
    unfinished: Path

    @property
    def best(self) -> Changes:
        """The settings of the best trial so far."""
        return self.settings(max(self.tried, key=lambda trial: trial[SCORE]))

    def settings(self, trial: Changes) -> Changes:
        return {field: trial[field] for field in self.grid}

    @property
    def next_grid(self) -> Grid | None:
        """The values that are still to be tried; None where tuning is done."""
        known, grid = [self.settings(trial) for trial in self.tried], joined(self.grid, self.tried)
        return grid if any(each not in known for each in combinations(grid)) else grown(grid, self.best)

    @property
    def lacks(self) -> list[int]:
        """The seeds that the best settings have not been run with."""
        return [seed for seed in self.seeds if (self.best, seed) not in self.have]

    @property
    def note(self) -> str:
        return note_of(len(self.tried), self.best)

    @property
    def is_done(self) -> bool:
        return bool(self.tried) and self.next_grid is None and not self.lacks


Found = tuple[Job, list[dict[str, Any]]]
"""A cell that was tuned, and the entries of its new runs."""


def measure(job: Job, deadline: float) -> Found | None:
    """Tune a cell and run it with the seeds that it lacks; None after the deadline."""
    if time.time() > deadline:
        return None
    experiment = find_experiments(job.file, job.overrides, [job.cell])[job.cell]
    hold(experiment, [experiment.seed, *job.seeds])
    while grid := job.next_grid:
        known = [job.settings(trial) for trial in job.tried]
        new = [each for each in combinations(grid) if each not in known]
        job = replace(job, tried=[*job.tried, *tried(experiment, new, job.unfinished)])
    tuned = changed(experiment, job.best).model_copy(update={"note": job.note})
    reported = [tuned.model_copy(update={"seed": seed}) for seed in job.lacks]
    outcomes = [told(outcome) for _, outcome in sorted(run_all(reported), key=itemgetter(0))]
    return job, [entry_of(job.cell, *each) for each in zip(reported, outcomes, strict=True)]


def tried(experiment: Experiment, settings: Sequence[Changes], unfinished: Path) -> list[Changes]:
    """The settings with the scores of their trials, which are noted as they come."""
    at_the_end = {"evaluation.every": experiment.train.rounds}  # all that a trial is chosen by
    found: dict[int, Changes] = {}
    for number, outcome in run_all([changed(experiment, values | at_the_end) for values in settings]):
        if isinstance(outcome, str):
            raise RuntimeError(f"the trial with {settings[number]} failed: {outcome}")
        score = validation_score(experiment, outcome.history[-1])
        found[number] = settings[number] | {SCORE: score if isfinite(score) else 0.0}
        with unfinished.open("a") as notes:  # a short line is appended whole, whoever else writes
            notes.write(json.dumps({"of": digest(experiment, settings[number]), "trial": found[number]}) + "\n")
    return [found[number] for number in range(len(settings))]


def digest(experiment: Experiment, settings: Changes) -> str:
    """Tells a trial from those of other experiments, and of this one as it was before."""
    return hashlib.sha256(changed(experiment, settings).model_dump_json().encode()).hexdigest()[:24]


def noted(experiment: Experiment, grid: Grid, unfinished: Path) -> list[Changes]:
    """The trials of a cell that were done when it was stopped."""
    lines = unfinished.read_text().splitlines() if unfinished.exists() else []
    notes = [json.loads(line) for line in lines if line.endswith("}")]
    trials = [each for each in notes if each["trial"].keys() == {*grid, SCORE}]
    return [n["trial"] for n in trials if n["of"] == digest(experiment, {f: n["trial"][f] for f in grid})]


def run_all(experiments: Sequence[Experiment]) -> Iterator[tuple[int, Run | str]]:
    """The runs of experiments of one kind, or their errors; in memory, for nothing of them is kept but numbers."""
    for number, outcome in run_stacked([partial(_run, each) for each in experiments], STACK):
        try:
            found: Run | str = outcome()
        except Exception as error:  # one that fails must not take the others with it
            found = f"{error}".partition("\n")[0] or type(error).__name__
        yield number, found


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


def share(jobs: int, memory: float) -> None:
    """Take no more of the machine than one of so many processes may, which have that part of a GPU's memory."""
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(memory / jobs)


def warm_up(file: Path, cell: str, overrides: Sequence[str]) -> None:
    """Hold what a cell reads, which leaves features in the cache for all other processes."""
    hold(find_experiments(file, overrides, [cell])[cell], [])


def in_order(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The names that match the patterns, those of the first pattern first."""
    chosen = [name for pattern in patterns for name in names if fnmatchcase(name, pattern)]
    return list(dict.fromkeys(chosen))


def jobs_of(
    file: Path, overrides: Sequence[str], patterns: Sequence[str], grid: Sequence[str], seeds: Sequence[int], out: Path
) -> list[Job]:
    """What the results lack of the cells that match, those of the first pattern first."""
    experiments, entries, trials = find_experiments(file, overrides), read_entries(out), read_trials(out)
    found = []
    for cell in in_order(list(experiments), patterns):
        values = parsed(grid) if grid else default_grid(file, cell, experiments[cell])
        mine = [each for each in entries if each["name"] == cell and "result" in each]
        have = [
            ({field: told_of(each["experiment"], experiments[cell], field) for field in values}, each["seed"])
            for each in mine
        ]
        for entry, (settings, seed) in zip(mine, have, strict=True):
            of_machine = {"train.tf32": entry["experiment"]["train"].get("tf32", False)}  # on a CPU it means nothing
            about = {"seed": seed, "note": entry["experiment"].get("note")}
            wanted = changed(experiments[cell], settings | of_machine).model_copy(update=about)
            if other := difference(entry["experiment"], wanted):
                raise SystemExit(f"{out}: has {cell}, seed {seed} with another {other}; give the changed one --out")
        unfinished = out.with_suffix(".unfinished.jsonl")
        tried = [trial | {SCORE: trial[SCORE] or 0.0} for trial in trials.get(cell, [])]
        tried += [each for each in noted(experiments[cell], values, unfinished) if each not in tried]
        found.append(Job(file, cell, overrides, values, tried, seeds, have, unfinished))
    return [job for job in found if not job.is_done]


def parsed(grid: Sequence[str]) -> Grid:
    """--grid as a grid."""
    trials = parse_combinations(grid)
    return {field: sorted({trial[field] for trial in trials}) for field in trials[0]}


def default_grid(file: Path, cell: str, experiment: Experiment) -> Grid:
    """The grid of a cell of experiments/silos by its method, of any other by whether it clips."""
    if file.parent.name == "silos":
        return silos_grid(cell.split("/")[1])
    return user_level_grid(clips=experiment.mechanism.adds_noise)


def told_of(told: dict[str, Any], experiment: Experiment, field: str) -> Any:
    """The value of a field in an entry, which does not tell what was left at its default."""
    section, name = field.split(".")
    return told[section].get(name, getattr(getattr(experiment, section), name))


def read_trials(out: Path) -> dict[str, list[Changes]]:
    file = trials_file(out)
    found: dict[str, list[Changes]] = json.loads(file.read_text()) if file.exists() else {}
    return found


def trials_file(out: Path) -> Path:
    return out.with_suffix(".trials.json")


def write(out: Path, job: Job, entries: Sequence[dict[str, Any]]) -> None:
    """Put the runs of a cell and its trials into their files, in the place of runs with settings not chosen."""
    stale = {seed for settings, seed in job.have if settings != job.best}
    for entry in read_entries(out):
        if entry["name"] == job.cell and entry["seed"] not in stale:
            entry["experiment"]["note"] = job.note
            add_entry(out, entry)
    remove_entries(out, job.cell, stale)
    for entry in entries:
        add_entry(out, entry)
    trials = read_trials(out) | {job.cell: list(job.tried)}
    write_whole(trials_file(out), (json.dumps(dict(sorted(trials.items()))) + "\n").encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--cell", action="append", help="a pattern of cells; those of the first are run first")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="section.field=value, for all")
    parser.add_argument("--grid", action="append", default=[], help="section.field=[value, ...]")
    parser.add_argument("--seeds", default=SEEDS, help="seeds of the runs that are reported")
    parser.add_argument("--out", type=Path, help="the results file; left out: where the file's own results are")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--memory", type=float, default=0.9, help="the part of a GPU's memory for all of them")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no cell is begun")
    given = parser.parse_args()
    out = given.out or Path("results", *given.file.with_suffix(".json").parts[1:])
    seeds = [int(seed) for seed in given.seeds.split(",")]
    if any(each.seed in seeds for each in find_experiments(given.file, given.overrides).values()):
        parser.error("--seeds: has that of the trials, among which the best was chosen")
    jobs = jobs_of(given.file, given.overrides, given.cell or ["*"], given.grid, seeds, out)
    if not jobs:
        print(f"{out}: has all of these")
        return
    begun, deadline, left = time.time(), time.time() + given.seconds, 0
    out.parent.mkdir(parents=True, exist_ok=True)
    context, of_process = multiprocessing.get_context("spawn"), (given.jobs, given.memory)
    with ProcessPoolExecutor(given.jobs, mp_context=context, initializer=share, initargs=of_process) as pool:
        experiments = find_experiments(given.file, given.overrides)
        kinds = {_reads(experiments[job.cell]): job.cell for job in reversed(jobs)}
        for cell in kinds.values():  # one after another: a transform of all records takes much of a GPU's memory
            pool.submit(warm_up, given.file, cell, given.overrides).result()
        futures = {pool.submit(measure, job, deadline): job.cell for job in jobs}
        for count, future in enumerate(as_completed(futures), 1):
            if future.exception() is not None:
                print(f"{futures[future]}: {future.exception()}", file=sys.stderr, flush=True)
                continue
            found = future.result()
            if found is None:
                left += 1
                continue
            write(out, *found)
            print(f"{count}/{len(jobs)} {time.time() - begun:.0f} s  {_shown(*found)}", flush=True)
    print(f"{out}: {left} of {len(jobs)} cells are left" if left else f"{out}: done")


def _shown(job: Job, entries: Sequence[dict[str, Any]]) -> str:
    done = [each["result"]["accuracy"] for each in entries if "result" in each]
    shown = [
        f"{words} {', '.join(f'{100 * each[name]:.1f}' for each in done)}"
        for words, name in (("P-dist", "distribution_accuracy_last"), ("last", "last"), ("average", "average"))
        if done and done[0].get(name) is not None
    ]
    return "  ".join([job.cell, *shown, f"{len(job.tried)} trials", *(f"{f} {v:g}" for f, v in job.best.items())])


if __name__ == "__main__":
    main()

"""Fills the paper's tables within given seconds on a GPU, the most worthwhile first (tools/pages/paper_blocks.py).

    python tools/measure_paper.py --plan                          # what is left and what it would cost; runs nothing
    python tools/measure_paper.py --seconds 560 --jobs 4 --stack 8 --out results
    python tools/measure_paper.py --seconds 560 --jobs 1 --blocks intervals,fair-mlp

Cells of a block are tuned alike, on validation records with seed 0, then run with the block's seeds; up to --stack runs
are trained as one program, in each of --jobs processes. Every run goes into results/TABLE.json as soon as it is done,
trials into results/TABLE.trials.json. What these have is not run again, so that the program can be stopped and started
on any machine; on the same machine unfinished runs go on from their checkpoints in --work. A job is begun only if it
and those under way are expected to end within --seconds.
"""

import argparse
import json
import math
import multiprocessing
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment
from fedceo.simulation.durable import write_whole
from fedceo.studies.cells import Cell, find_experiments, trial_folder
from fedceo.studies.filling import add_entry, read_entries
from fedceo.studies.results import results_of
from fedceo.studies.sweep import sweep
from fedceo.studies.tune import changed, last_validation

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tools" / "pages"))  # pages show what the blocks lack
from paper_blocks import BLOCKS, Block, Changes  # noqa: E402

ALIKE = ("train.tf32=true", "evaluation.personal_clients=0", "checkpoint.every=100")
"""How all cells are run, whatever their file says: as those of earlier tables, with no more measured than is shown."""
LARGEST = 100.0
"""GPU seconds of a job, if it is of more than one cell: near the end small jobs fit where large ones do not."""
LOCK: Any = None
"""Held by the process that writes a results file."""


@dataclass(frozen=True)
class Job:
    """Cells of a block that one process tunes and runs together.

    Attributes:
        cells: their names in the experiment file, and the seeds that each lacks.
    """

    block: Block
    cells: tuple[tuple[str, tuple[int, ...]], ...]
    overrides: tuple[str, ...]
    out: Path
    work: Path
    stack: int

    @property
    def results(self) -> Path:
        return self.out / f"{self.block.table}{self.block.kind}.json"

    @property
    def trials(self) -> Path:
        return self.results.with_suffix(".trials.json")

    def experiments(self) -> dict[str, Experiment]:
        file = ROOT / "experiments" / f"{self.block.table}.toml"
        found = find_experiments(file, [*self.block.changes, *ALIKE, *self.overrides])
        return {name: found[name] for name, _ in self.cells}

    def name_of(self, cell: str) -> str:
        return ",".join([cell, *self.block.changes])

    def meets(self, other: "Job") -> bool:
        """Whether both would work on one cell, whose trials are to be run once."""
        return self.results == other.results and bool(dict(self.cells).keys() & dict(other.cells).keys())

    def cost(self, rounds: int = 300) -> float:
        """The GPU seconds that are expected."""
        known = _read(self.trials)
        return sum(self.block.seconds(cell, seeds, self.name_of(cell) in known, rounds) for cell, seeds in self.cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="within which all that is begun shall end")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--stack", type=int, default=8, help="runs that a process trains as one program")
    parser.add_argument("--blocks", help="only these, in this order: NAME,NAME")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="section.field=value, for all")
    parser.add_argument("--out", type=Path, default=ROOT / "results", help="the folder of results files")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "measure_paper", help="the folder of run folders")
    parser.add_argument("--plan", action="store_true", help="say what is left and what it would cost, and run nothing")
    given = parser.parse_args()
    named = {block.name: block for block in BLOCKS}
    try:
        blocks = [named[name] for name in given.blocks.split(",")] if given.blocks else BLOCKS
    except KeyError as unknown:
        parser.error(f"--blocks: {unknown}, expected of {', '.join(named)}")
    jobs = [job for block in blocks for job in jobs_of(block, given.overrides, given.out, given.work, given.stack)]
    if given.plan:
        show_plan(blocks, jobs)
    else:
        carry_out(jobs, given.jobs, given.seconds)


def jobs_of(block: Block, overrides: Sequence[str], out: Path, work: Path, stack: int) -> list[Job]:
    """What the results lack of a block, as many cells in a job as fill the stack."""
    empty = Job(block, (), tuple(overrides), out, work / block.table, stack)
    shipped = ROOT / "results"
    for file in (empty.results, empty.trials):
        known = shipped / file.relative_to(out)
        if not file.exists() and known.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(known, file)
    have = {(each["name"].removesuffix("/tuned"), each["seed"]) for each in read_entries(empty.results)}
    names = find_experiments(ROOT / "experiments" / f"{block.table}.toml", block.changes)
    chosen = [name for pattern in block.cells for name in names if fnmatchcase(name, pattern)]
    lacking = []
    for name in dict.fromkeys(chosen):
        seeds = tuple(seed for seed in block.seeds if (empty.name_of(name), seed) not in have)
        lacking += [(name, seeds)] if seeds else []
    jobs = []
    for tuned in (False, True):  # in one job they would wait for each other
        part: list[tuple[str, tuple[int, ...]]] = []
        for cell in (each for each in lacking if bool(block.trials(each[0])) == tuned):
            together = replace(empty, cells=(*part, cell))
            at_once = len(together.cells) * max(len(cell[1]), block.finalists if tuned else 1)
            if part and (at_once > stack or together.cost() > LARGEST):
                jobs.append(replace(empty, cells=tuple(part)))
                part = []
            part.append(cell)
        jobs += [replace(empty, cells=tuple(part))] if part else []
    return jobs


def show_plan(blocks: Sequence[Block], jobs: Sequence[Job]) -> None:
    total = 0.0
    print(f"{'block':20} {'cells':>6} {'runs':>5} {'GPU seconds':>12} {'so far':>8}")
    for block in blocks:
        mine = [job for job in jobs if job.block is block]
        cost = sum(job.cost() for job in mine)
        total += cost
        runs = sum(len(seeds) for job in mine for _, seeds in job.cells)
        print(f"{block.name:20} {sum(len(job.cells) for job in mine):6} {runs:5} {cost:12.0f} {total:8.0f}")


def carry_out(jobs: Sequence[Job], processes: int, seconds: float) -> None:
    """Run the jobs in their order, passing over those that no longer fit into the time."""
    begun = time.time()
    context = multiprocessing.get_context("spawn")
    waiting, running = list(jobs), dict[Future[str], tuple[Job, float]]()

    def fits(job: Job) -> bool:
        now = time.time()
        others = sum(max(0.0, each.cost() - (now - since) / processes) for each, since in running.values())
        return now - begun + others + job.cost() <= seconds

    def may_begin(job: Job) -> bool:
        return fits(job) and not any(job.meets(each) for each, _ in running.values())

    with ProcessPoolExecutor(processes, context, _start, (context.Lock(),)) as pool:
        while running or any(map(fits, waiting)):
            free = [job for job in waiting if may_begin(job)] if len(running) < processes else []
            if free:
                waiting.remove(free[0])
                running[pool.submit(run_job, free[0])] = free[0], time.time()
                continue
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job, _ = running.pop(future)
                what = f"failed: {future.exception()}" if future.exception() else future.result()
                print(f"{time.time() - begun:5.0f} s, {len(waiting)} jobs wait; {job.block.name}: {what}", flush=True)
    print(f"{time.time() - begun:.0f} s; {len(waiting)} jobs are left")


def _start(lock: Any) -> None:
    global LOCK
    LOCK = lock
    torch.set_num_threads(1)


def run_job(job: Job) -> str:
    """Tune the job's cells and run their seeds; returns a line of accuracies."""
    began, said = time.time(), []
    tuned = tune(job)
    cells = [
        Cell(job.name_of(name), seeded, trial_folder(job.work / name, seeded))
        for name, seeds in job.cells
        for seed in seeds
        for seeded in [tuned[name].model_copy(update={"seed": seed})]
    ]

    def on_cell(cell: Cell, result: dict[str, Any] | None, error: str | None) -> None:
        if result is None:
            said.append(f"{cell.name}, seed {cell.experiment.seed} failed: {error}")
            return
        (entry,) = results_of([cell], [result], {})
        with LOCK:
            add_entry(job.results, entry)
        said.append(f"{cell.name} {100 * result['accuracy']['last']:.1f}")

    sweep(cells, on_cell=on_cell, stack=job.stack)
    return f"{time.time() - began:.0f} s (expected {job.cost():.0f}): {'; '.join(said)}"


def tune(job: Job) -> dict[str, Experiment]:
    """Every experiment of the job with the settings that its trials chose, of this start or an earlier one."""
    experiments, known = job.experiments(), _read(job.trials)
    tried: dict[str, list[Changes]] = {}
    for name in experiments:
        settings = job.block.trials(name)
        if settings and job.name_of(name) not in known:
            tried[name] = settings
    rounds = {name: min(job.block.length or 10**9, each.train.rounds) for name, each in experiments.items()}
    scores = _scores(
        job, experiments, {(n, i): rounds[n] for n, each in tried.items() for i in range(len(each))}, tried
    )
    finals: dict[tuple[str, int], int] = {}
    if job.block.finalists > 1:
        for name in tried:
            ranked = sorted((key for key in scores if key[0] == name), key=lambda key: -scores[key])
            finals |= dict.fromkeys(ranked[: job.block.finalists], experiments[name].train.rounds)
    at_full_length = _scores(job, experiments, finals, tried)
    for (name, number), score in scores.items():
        found = tried[name][number] | {"validation_accuracy": score}
        found |= {"at_full_length": at_full_length[name, number]} if (name, number) in finals else {}
        known.setdefault(job.name_of(name), []).append(found)
    if tried:
        with LOCK:
            latest = _read(job.trials) | {job.name_of(name): known[job.name_of(name)] for name in tried}
            job.trials.parent.mkdir(parents=True, exist_ok=True)
            write_whole(job.trials, (json.dumps(dict(sorted(latest.items()))) + "\n").encode())
    return {name: _chosen(each, known.get(job.name_of(name), []), rounds[name]) for name, each in experiments.items()}


def _scores(
    job: Job,
    experiments: dict[str, Experiment],
    lengths: dict[tuple[str, int], int],
    tried: dict[str, list[Changes]],
) -> dict[tuple[str, int], float]:
    """The validation accuracy of trials of these lengths, by the cell's name and the number of the trial."""
    cells = {}
    for (name, number), rounds in lengths.items():
        trial = changed(experiments[name], tried[name][number] | {"train.rounds": rounds})
        cells[name, number] = Cell(f"{name}, trial {number}", trial, trial_folder(job.work / name, trial))
    errors: dict[str, str] = {}

    def on_cell(cell: Cell, result: dict[str, Any] | None, error: str | None) -> None:
        errors.update({cell.name: error} if error else {})

    sweep(list(cells.values()), on_cell=on_cell, stack=job.stack)
    if cells and len(errors) == len(cells):
        raise UsageError(f"no trial came to an end; {next(iter(errors.items()))}")
    scores = {key: last_validation(cell) for key, cell in cells.items()}
    return {key: score if math.isfinite(score) else 0.0 for key, score in scores.items()}  # 0 for one that failed


def _chosen(experiment: Experiment, trials: Sequence[Changes], rounds: int) -> Experiment:
    """The experiment with the settings of its best trial; as it is where it has none."""
    if not trials:
        return experiment
    finalists = [each for each in trials if "at_full_length" in each]
    score = "at_full_length" if finalists else "validation_accuracy"
    best = max(finalists or trials, key=lambda each: each[score])
    values = {name: value for name, value in best.items() if "." in name}
    again = f", the best {len(finalists)} again at full length," if finalists else ""
    note = f"best of {len(trials)} trials of {rounds} rounds{again} on validation over {', '.join(values)}"
    return changed(experiment, values).model_copy(update={"note": note})


def _read(file: Path) -> dict[str, list[Changes]]:
    found: dict[str, list[Changes]] = json.loads(file.read_text()) if file.exists() else {}
    return found


if __name__ == "__main__":
    main()

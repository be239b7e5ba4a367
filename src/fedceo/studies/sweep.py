"""Runs every cell of a sweep, as many at a time as the machine can, and leaves finished ones alone."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import Any

import torch

from fedceo.errors import UsageError
from fedceo.methods.hosted import check_same_method
from fedceo.models.plugins import check_unchanged
from fedceo.simulation.folder import RunFolder
from fedceo.simulation.runs import OnStart, resume, run
from fedceo.simulation.stacked import run_stacked
from fedceo.studies.cells import Cell, of_the_run

Outcome = tuple[int, Callable[[], dict[str, Any]]]
"""A cell's number, and a function that gives its result or raises."""
OnCell = Callable[[Cell, dict[str, Any] | None, str | None], None]


def sweep(
    cells: Sequence[Cell], jobs: int | None = None, on_cell: OnCell | None = None, stack: int | None = None
) -> list[dict[str, Any] | None]:
    """The results of all cells in their order, with None for a cell that failed.

    A finished run is read, an unfinished one resumed. A run folder that holds another experiment is refused before
    anything is run.

    Args:
        jobs: runs at a time; left out: one for each core on a CPU, one on a GPU.
        on_cell: called with each cell as it is done, and its result or its error.
        stack: runs that go on in lockstep in this process instead, trained as one program where they fit together.
    """
    if stack is not None and jobs is not None:
        raise UsageError("--stack: trains its runs in one process, expected no --jobs")
    for cell in cells:
        _check(cell)
    results: dict[int, dict[str, Any] | None] = {}

    def done(number: int, result: dict[str, Any] | None, error: str | None) -> None:
        results[number] = result
        if on_cell is not None:
            on_cell(cells[number], result, error)

    waiting = []
    for number, cell in enumerate(cells):
        if RunFolder(cell.folder).finished:
            done(number, RunFolder(cell.folder).result(), None)
        else:
            waiting.append(number)
    left = [(number, cells[number]) for number in waiting]
    jobs = min(jobs or default_jobs(), max(len(left), 1))
    for number, outcome in _outcomes(left, jobs) if stack is None else _stacked(left, stack):
        try:
            done(number, outcome(), None)
        except Exception as error:  # a cell that fails must not take the others with it
            done(number, None, str(error).splitlines()[0] if str(error) else type(error).__name__)
    return [results[number] for number in range(len(cells))]


def default_jobs() -> int:
    """The number of runs at a time: one for each core that this process may use, or one on a GPU."""
    if torch.cuda.is_available():
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_cell(cell: Cell, on_start: OnStart | None = None) -> dict[str, Any]:
    """Run the cell, or go on with its unfinished run, and return its result; on_start: as for `run`."""
    if RunFolder(cell.folder).exists:
        _check(cell)
        return resume(cell.folder, on_start=on_start, progress=False).result
    return run(cell.experiment, out=cell.folder, on_start=on_start, progress=False).result


def _check(cell: Cell) -> None:
    folder = RunFolder(cell.folder)
    if not folder.exists:
        return
    if of_the_run(folder.experiment()) != of_the_run(cell.experiment):
        raise UsageError(f"{cell.folder}: holds a run of another experiment; choose another --out or remove it")
    if folder.finished:
        was = folder.result()
        name = cell.experiment.model.name
        check_unchanged(was.get("own_model"), name, was["record_shape"], was["classes"], cell.folder)
        check_same_method(was, cell.experiment.method, cell.folder)


def _stacked(cells: Sequence[tuple[int, Cell]], size: int) -> Iterator[Outcome]:
    """As `_outcomes`, with up to `size` runs in lockstep; cells of one kind, which may fit together, are a stack."""
    kinds: dict[Any, list[tuple[int, Cell]]] = {}
    for number, cell in cells:
        train, data = cell.experiment.train, cell.experiment.data
        kind = train.device, train.tf32, train.precision, cell.experiment.model.name, data.name, data.path
        kinds.setdefault(kind, []).append((number, cell))
    for alike in kinds.values():
        for place, outcome in run_stacked([partial(run_cell, cell) for _, cell in alike], size):
            yield alike[place][0], outcome


def _outcomes(cells: Sequence[tuple[int, Cell]], jobs: int) -> Iterator[Outcome]:
    """The outcome of each cell as it is done.

    One job needs no process of its own.
    """
    if jobs == 1:
        for number, cell in cells:
            yield number, partial(run_cell, cell)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures = {pool.submit(run_cell, cell): number for number, cell in cells}
        for future in as_completed(futures):
            yield futures[future], future.result

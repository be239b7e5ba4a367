"""Tasks: how a cohort is cut into them, and in which order workers get them. Nothing here knows Ray."""

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

TURNS = 4
"""Tasks for each worker where the cohort is large: a machine twice as fast then takes twice as many."""

LEAST_CLIENTS = 8
"""Clients in a task, at least, before there is more than one task for each worker: training is faster in batches."""

MOST_TRIES = 3
"""Workers that may die on one task before the task is taken to be the cause."""

Worker = TypeVar("Worker", bound=Hashable)


def cut(clients: int, workers: int) -> list[range]:
    """The positions 0..clients-1 in a cohort, cut into contiguous ranges of one size, the last one possibly shorter.

    The ranges depend on the two numbers alone, never on a timing: which clients form a batch decides the last bits of
    their weights.
    """
    turns = min(max(clients // (LEAST_CLIENTS * workers), 1), TURNS)
    size = max(1, -(-clients // (turns * workers)))
    return [range(first, min(first + size, clients)) for first in range(0, clients, size)]


class TaskQueue(Generic[Worker]):
    """A queue of tasks 0..n-1, each handed out to one worker at a time, that knows when all are done.

    A task whose worker is lost is handed out again, before all others. Each task has one result.
    """

    def __init__(self, tasks: int) -> None:
        self._waiting = deque(range(tasks))
        self._held: dict[Worker, int] = {}
        self._tries = [0] * tasks
        self._open = tasks

    @property
    def is_done(self) -> bool:
        return self._open == 0

    def take(self, worker: Worker) -> int | None:
        """The next task for this worker, or None if all are handed out."""
        if not self._waiting:
            return None
        self._held[worker] = task = self._waiting.popleft()
        self._tries[task] += 1
        return task

    def finish(self, worker: Worker) -> int:
        """The task that this worker has finished."""
        self._open -= 1
        return self._held.pop(worker)

    def lose(self, worker: Worker) -> int | None:
        """The task of a lost worker, if it had one; the task waits again, unless too many workers have died on it."""
        task = self._held.pop(worker, None)
        if task is not None:
            if self._tries[task] == MOST_TRIES:
                raise TooManyTriesError(task)
            self._waiting.appendleft(task)
        return task


class TooManyTriesError(Exception):
    """A task on which MOST_TRIES workers have died."""

    def __init__(self, task: int) -> None:
        super().__init__(f"{MOST_TRIES} workers in a row did not survive task {task}")
        self.task = task

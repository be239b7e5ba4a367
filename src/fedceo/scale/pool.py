"""Pools of worker processes that take tasks as they become free; one that dies is replaced, and its task done again."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

from fedceo.errors import UsageError
from fedceo.scale.cluster import check_alive, ray, vital_parts
from fedceo.scale.scheduling import MOST_TRIES, TaskQueue
from fedceo.scale.worker import Worker, WorkerSetup

LOST = (RayActorError, WorkerCrashedError, NodeDiedError, OutOfMemoryError, ObjectLostError)
"""Ray's exceptions for a worker, a machine or a stored result that is gone."""

WATCH_SECONDS = 2.0
"""Seconds after which it is looked again whether Ray is still there; without it workers may go on for a while."""

START_SECONDS = 120.0
"""Seconds that the first worker may take to start: a cluster that others use may have no room now."""


class Pool:
    """A fixed number of workers, each with a TrainingContext of its own.

    Attributes:
        size: the number of workers.
        lost: the number of workers that have died and were replaced.
        machines: names of the machines on which workers run or ran.
    """

    def __init__(self, setup: WorkerSetup, size: int, gpus: float) -> None:
        self.size, self.lost = size, 0
        self.machines: set[str] = set()
        self._parts, self._checked = vital_parts(), time.monotonic()
        self._setup = ray.put(setup)
        self._remote = ray.remote(Worker).options(num_cpus=1, num_gpus=gpus, scheduling_strategy="SPREAD")
        self._alive: set[Any] = set()
        self._idle: list[Any] = []
        self._starting: dict[Any, Any] = {}
        self._failed_starts = 0
        for _ in range(size):
            self._start()

    def run(self, method: str, tasks: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """(k, result) of every task in the order of arrival; each task has one result, however many workers tried it.

        Args:
            method: the method of `Worker` to call.
            tasks: the arguments of each call; those that Ray's object store holds are given as references.
        """
        queue: TaskQueue[Any] = TaskQueue(len(tasks))
        working: dict[Any, Any] = {}
        while not queue.is_done:
            while self._idle and (task := queue.take(self._idle[0])) is not None:
                worker = self._idle.pop(0)
                working[getattr(worker, method).remote(*tasks[task])] = worker
            arrived = self._await(working)
            if arrived is None:
                continue
            worker = working.pop(arrived)
            try:
                result = _get(arrived)
            except LOST:
                queue.lose(worker)
                self._replace(worker)
            else:
                self._idle.append(worker)
                yield queue.finish(worker), result

    def await_one(self) -> None:
        """Wait until the first worker is ready; the others join in when they are."""
        while not self._idle:
            self._await({})

    def check(self) -> None:
        """Raise the error for a Ray that has ended, if it has."""
        check_alive(self._parts)
        self._checked = time.monotonic()

    def close(self) -> None:
        """End all workers."""
        for worker in self._alive:
            ray.kill(worker)

    def _await(self, working: dict[Any, Any]) -> Any:
        """The reference of a task that has ended, or None where instead a worker has started or failed to start."""
        begun = time.monotonic()
        ended: list[Any] = []
        while not ended:
            if time.monotonic() - self._checked >= WATCH_SECONDS:
                self.check()
            ended, _ = ray.wait([*working, *self._starting], timeout=WATCH_SECONDS)
            if not ended and not working and time.monotonic() - begun >= START_SECONDS:
                raise UsageError(f"--workers: none could be started within {START_SECONDS:g} s; is the cluster in use?")
        if ended[0] in working:
            return ended[0]
        worker = self._starting.pop(ended[0])
        try:
            self.machines.add(_get(ended[0]))
        except LOST as error:
            self._failed_starts += 1
            if self._failed_starts == MOST_TRIES * self.size:
                reason = str(error).strip().splitlines()[0]
                raise UsageError(f"--workers: they end while they start: {reason}") from None
            self._replace(worker)
        else:
            self._failed_starts = 0
            self._idle.append(worker)
        return None

    def _start(self) -> None:
        worker: Any = self._remote.remote()
        self._alive.add(worker)
        self._starting[worker.prepare.remote(self._setup)] = worker

    def _replace(self, worker: Any) -> None:
        ray.kill(worker)  # it may only be out of reach; its result would no longer be used
        self._alive.remove(worker)
        self.lost += 1
        self._start()


@contextmanager
def pool_of(setup: WorkerSetup, size: int, gpus: float) -> Iterator[Pool]:
    """A pool with at least one worker ready; all workers end with the context."""
    workers = Pool(setup, size, gpus)
    try:
        workers.await_one()
        yield workers
    except Exception:
        workers.check()  # whatever it is, it is the end of Ray that explains it
        raise
    finally:
        workers.close()


def _get(reference: Any) -> Any:
    """The result of a task; a UsageError is raised as it is, not wrapped in Ray's report from another process."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, UsageError):
            raise error.cause from None
        raise

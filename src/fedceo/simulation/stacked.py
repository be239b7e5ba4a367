"""Runs in lockstep: several at a time, each as if it were alone, whose cohorts are trained as one where they fit.

A run goes its way in a thread of its own, with its own simulation, folder and ledger, until it has a cohort to train.
When all runs of the stack wait for that, their cohorts are trained in the caller's thread, and each goes on with its
answer. No two threads are ever awake at once, so that nothing has to be locked and every order of events repeats.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Generic, TypeVar

from fedceo.simulation.rounds import Simulation
from fedceo.simulation.runs import OnStart
from fedceo.tensors.weights import Weights
from fedceo.training.batched.cohort import Call
from fedceo.training.batched.joining import Seat, find_seat, train_all
from fedceo.training.work import Trained, Trainer, Work

Result = TypeVar("Result")
Question = tuple[Trainer, Call]


def run_stacked(tasks: Iterable[Callable[[OnStart], Result]], size: int) -> Iterator[tuple[int, Callable[[], Result]]]:
    """Carry out runs, up to `size` at a time; yields each one's number as it ends, and what gives its result or raises.

    A run that ends, in whatever way, leaves its place to the next. Runs of a stack share torch's settings, so they must
    ask for one device and one precision.

    tasks: each a function that is given the `on_start` of its run.
    """
    waiting = deque(enumerate(tasks))
    runs: dict[int, _Run[Result]] = {}
    asked: dict[int, Question] = {}
    try:
        while waiting or asked:
            if waiting and len(runs) < size:
                number, task = waiting.popleft()
                runs[number] = _Run(task, [run.seat for run in runs.values() if run.seat is not None])
                questions = {number: runs[number].begin()}
            else:
                answers = zip(list(asked), train_all(list(asked.values())), strict=True)
                questions = {number: runs[number].go_on(answer) for number, answer in answers}
            for number, question in questions.items():
                if question is not None:
                    asked[number] = question
                else:
                    asked.pop(number, None)
                    yield number, runs.pop(number).outcome.result
    finally:
        for run in runs.values():
            run.stop()


class _Run(threading.Thread, Generic[Result]):
    """A run, awake from `begin` or `go_on` until it asks for training; it is the trainer of its own simulation.

    Attributes:
        outcome: the result or the error, once the run has ended.
        seat: its place beside others, once it has begun.
    """

    def __init__(self, task: Callable[[OnStart], Result], others: Sequence[Seat]) -> None:
        super().__init__(daemon=True)
        self.outcome: Future[Result] = Future()
        self.seat: Seat | None = None
        self._task, self._others = task, others
        self._questions: SimpleQueue[Question | None] = SimpleQueue()
        self._answers: SimpleQueue[Trained | BaseException] = SimpleQueue()

    def begin(self) -> Question | None:
        """Wake the run for the first time; returns its first question, None if it has ended."""
        self.start()
        return self._questions.get()

    def go_on(self, answer: Trained | Exception) -> Question | None:
        """Wake the run with the answer to its question; returns the next, None if it has ended."""
        self._answers.put(answer)
        return self._questions.get()

    def stop(self) -> None:
        """End the run where it next asks for training, as Ctrl-C would, and wait for that."""
        self._answers.put(KeyboardInterrupt())
        if self.is_alive():
            self.join()

    def run(self) -> None:
        try:
            self.outcome.set_result(self._task(self._take_seat))
        except BaseException as error:
            self.outcome.set_exception(error)
        self._questions.put(None)

    def train(self, starts: Weights, clients: Sequence[int], round_: int, work: Work) -> Trained:
        assert self.seat is not None
        self._questions.put((self.seat.trainer, Call(self.seat.context, starts, clients, round_, work)))
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _take_seat(self, simulation: Simulation) -> None:
        """Train the simulation through this run's questions from now on."""
        self.seat = find_seat(simulation.trainer, simulation.context, self._others)
        simulation.context, simulation.trainer = self.seat.context, self

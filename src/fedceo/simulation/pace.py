"""How far a run is and how long it will take, in words that a log, a terminal and a notebook show alike."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LOG = logging.getLogger("fedceo")
SILENCE = 60.0
"""Seconds after which a round is told of that was not measured, so that slow runs can be seen to live."""


class Pace:
    """Time so far and time left, from the mean of the steps taken so far; steps count from 1.

    The first step, which waits for data and warms up, counts only until there is a second one.

    Args:
        total: the number of steps of the whole.
    """

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.step = total, 0
        self._clock, self._start = clock, clock()
        self._first: tuple[int, float] | None = None  # the first step noted, and when it was done
        self._latest, self._told = 0.0, 0.0

    def go_on(self, step: int) -> None:
        """Note that a step has been taken; the first one noted may be any, where a run was resumed."""
        self.step, self._latest = step, self.elapsed
        self._first = self._first or (step, self._latest)

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._start

    @property
    def left(self) -> float | None:
        """Seconds that the other steps will take, less those since the last one; None before the first."""
        if self._first is None:
            return None
        first, then = self._first
        each = (self._latest - then) / (self.step - first) if self.step > first else then
        return max(each * (self.total - self.step) - (self.elapsed - self._latest), 0.0)

    def is_due(self, measured: bool) -> bool:
        """Whether a line should tell of this step: a measured one, the first, the last, or one after a silence."""
        due = measured or self._told == 0.0 or self.step == self.total or self.elapsed - self._told >= SILENCE
        if due:
            self._told = max(self.elapsed, 1e-9)
        return due

    def in_words(self) -> str:
        left = self.left
        return f"{minutes(self.elapsed)} so far" + ("" if left is None else f", {minutes(left)} left")


def minutes(seconds: float) -> str:
    """A time as minutes:seconds or hours:minutes:seconds, rounded up."""
    whole, second = divmod(math.ceil(seconds), 60)
    hour, minute = divmod(whole, 60)
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def line_of(metrics: dict[str, Any], pace: Pace) -> str:
    """One line about a round."""
    parts = [f"round {metrics['round']} of {pace.total}"]
    if "test_accuracy" in metrics:
        parts.append(f"test accuracy {100 * metrics['test_accuracy']:.2f} %")
    if "epsilon" in metrics:
        parts.append(f"epsilon {metrics['epsilon']:.3g}")
    return ", ".join([*parts, pace.in_words()])


@contextmanager
def logged(rounds: int, wanted: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that logs a line (level INFO) for every measured round; it does nothing where that is not wanted.

    Where nobody has configured logging, the lines go to standard error while inside.
    """
    if not wanted:
        yield lambda metrics: None
        return
    pace = Pace(rounds)

    def tell(metrics: dict[str, Any]) -> None:
        pace.go_on(metrics["round"])
        if pace.is_due("test_accuracy" in metrics):
            LOG.info(line_of(metrics, pace))

    if LOG.hasHandlers():
        yield tell
        return
    handler, level = logging.StreamHandler(), LOG.level
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield tell
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)

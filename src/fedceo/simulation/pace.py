"""How far a run is and how long it will take, in words that a log, a terminal and a notebook show alike."""

import logging
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedceo.accounting.printed import rounded_up
from fedceo.tasks import is_measured, metric_of

Metrics = dict[str, Any]
Tell = Callable[[Metrics], None]
WithEpsilon = Callable[[Metrics], Metrics]

LOG = logging.getLogger("fedceo")
SILENCE = 60.0
"""Seconds after which a round is told of that was not measured, so that slow runs can be seen to live."""
BAR = 20
"""Letters of a bar."""
NOTEBOOK = 110
"""Letters of a line in a notebook, whose cells are that wide on a laptop."""
BETWEEN_FRAMES = 0.1
"""Seconds between two frames of a bar at least."""


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


def line_of(metrics: Metrics, pace: Pace) -> str:
    """One line about a round."""
    parts = [f"round {metrics['round']} of {pace.total}"]
    if is_measured(metrics):
        metric = metric_of(metrics)
        parts.append(f"test {metric.words} {metric.show(metrics[f'test_{metric.name}'])}")
    if "epsilon" in metrics:
        parts.append(f"epsilon {rounded_up(metrics['epsilon']):g}")
    return ", ".join([*parts, pace.in_words()])


class Bar:
    """A line on standard error that is written over round after round, for a terminal or a notebook."""

    def __init__(self, pace: Pace, with_epsilon: WithEpsilon = dict) -> None:
        self._pace, self._with_epsilon = pace, with_epsilon
        self._measured: Metrics = {}
        self._written, self._due = 0, 0.0

    def tell(self, metrics: Metrics) -> None:
        """Show a round, with the last measurement if it has none of its own; some rounds are too quick to be shown."""
        pace = self._pace
        pace.go_on(metrics["round"])
        self._measured |= self._with_epsilon(metrics)
        if pace.elapsed < self._due and pace.step < pace.total:
            return
        self._due = pace.elapsed + BETWEEN_FRAMES
        line = self._frame(shutil.get_terminal_size().columns - 1 if sys.stderr.isatty() else NOTEBOOK)
        sys.stderr.write(f"\r{line.ljust(self._written)}")
        sys.stderr.flush()
        self._written = len(line)

    def _frame(self, room: int) -> str:
        """The longest form that fits: words count for more than the bar, and only a very narrow room cuts them."""
        pace = self._pace
        done = BAR * pace.step // pace.total
        bar = f"{'━' * done}{'╌' * (BAR - done)} "
        whole, short = (
            line_of(self._measured, pace),
            f"round {pace.step} of {pace.total}, {minutes(pace.left or 0)} left",
        )
        forms = (bar + whole, whole, bar + short, short)
        return next((form for form in forms if len(form) <= room), short[:room])

    def end(self) -> None:
        """Leave the line as it is, and begin the next one."""
        if self._written:
            sys.stderr.write("\n")


def _can_overwrite() -> bool:
    """Whether standard error is a terminal or a notebook."""
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")


@contextmanager
def logged(rounds: int, wanted: bool, with_epsilon: WithEpsilon = dict) -> Iterator[Tell]:
    """A function that tells of rounds; it does nothing where that is not wanted.

    with_epsilon: what adds the epsilon so far to a round's metrics, asked only for rounds that are told of.

    Where logging is configured, it logs a line (level INFO) for every measured round. Where it is not, a terminal and a
    notebook show a bar, and anything else gets the same lines on standard error.
    """
    if not wanted:
        yield lambda metrics: None
        return
    pace = Pace(rounds)
    if not LOG.hasHandlers() and _can_overwrite():
        bar = Bar(pace, with_epsilon)
        try:
            yield bar.tell
        finally:
            bar.end()
        return

    def tell(metrics: Metrics) -> None:
        pace.go_on(metrics["round"])
        if LOG.isEnabledFor(logging.INFO) and pace.is_due(is_measured(metrics)):
            LOG.info(line_of(with_epsilon(metrics), pace))

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

"""A clock of a run's parts: the wall-clock seconds of each, for the report.

The clock never waits for a device. On a GPU, work that was only handed over is booked where the program next waits for
it, which for training is mostly the server step or the evaluation that follows.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

PARTS = ("training", "privatising", "server step", "evaluation", "recording")


class Clock:
    """Seconds spent so far in each of PARTS; parts do not lie within one another."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        """Book the time spent inside under this part."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - start

    def restore(self, seconds: Mapping[str, float]) -> None:
        """Go on from the seconds that a checkpoint holds."""
        self.seconds |= seconds

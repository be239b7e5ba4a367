"""What can be seen while a run goes on: the epsilon spent so far, and TensorBoard events."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedceo.errors import UsageError

if TYPE_CHECKING:
    from fedceo.simulation.rounds import Simulation

Advance = Callable[[dict[str, Any]], None]

SHARE = 0.05
"""The accountant takes up to a second an answer; it is asked so seldom that it takes this share of a run's time."""
FIRST_ANSWER = 1.0
"""Seconds that the first answer is expected to take."""


class Meter:
    """Adds the main observer's epsilon, `privacy.observer`, to rounds' records now and then, and to the last.

    meter = Meter()
    fedceo.run(experiment, on_start=meter.begin, on_round=lambda record: print(meter.read(record)))
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._asked: Simulation | None = None
        self._spent, self._dearest = 0.0, FIRST_ANSWER

    def begin(self, simulation: "Simulation") -> None:
        """Watch this simulation from now on."""
        self._asked = simulation if simulation.mechanism.adds_noise else None
        self._start = self._clock()

    def read(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record, with "epsilon" where it was worth asking: what is spent up to this round."""
        if self._asked is None:
            return record
        now = self._clock()
        last = record["round"] == self._asked.experiment.train.rounds  # which the result asks for anyway
        if not last and SHARE * (now - self._start) < self._spent + self._dearest:
            return record
        epsilon = _epsilon(self._asked)
        if epsilon is None:  # the observer is promised nothing, and will not be
            self._asked = None
            return record
        took = self._clock() - now
        self._spent, self._dearest = self._spent + took, max(self._dearest, took)
        return record | {"epsilon": epsilon}


def _epsilon(simulation: "Simulation") -> float | None:
    from fedceo.accounting.rows import answer
    from fedceo.simulation.spending import privacy_spec

    experiment, sizes = simulation.experiment, simulation.federation.sizes.tolist()
    plan = privacy_spec(experiment, sizes, simulation.noise_multiplier)
    return answer(simulation.ledger.spent(plan), experiment.privacy.observer).epsilon


def events(folder: Path) -> Advance:
    """A function that writes each round's numbers, and pictures of recorded rounds, as TensorBoard events."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError("--tensorboard: needs the extra fedceo[tensorboard]") from None
    writers: list[SummaryWriter] = []

    def write(record: dict[str, Any]) -> None:
        if not writers:  # the folder is the run's to create
            writers.append(SummaryWriter(str(folder / "events")))
        for name, value in record.items():
            if isinstance(value, float):
                writers[0].add_scalar(name, value, record["round"])
        recorded = folder / "records" / f"round-{record['round']:05}.safetensors"
        if recorded.exists():
            from fedceo.report.figures import of_recording, read_recording  # slow to import, and not always needed

            for name, drawing in of_recording(read_recording(recorded)).items():
                writers[0].add_figure(name, drawing.figure, record["round"])
        writers[0].flush()

    return write

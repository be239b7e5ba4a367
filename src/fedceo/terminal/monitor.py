"""Monitors of a run in progress: the epsilon spent so far, and TensorBoard events."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedceo.errors import UsageError

if TYPE_CHECKING:
    from fedceo.simulation.rounds import Simulation

Advance = Callable[[dict[str, Any]], None]

TIME_FRACTION = 0.05
"""The most that accounting may take of a run's time: one answer of the accountant can take a second."""
FIRST_ANSWER = 1.0
"""Seconds that the first answer is expected to take."""


class Meter:
    """A meter that adds the epsilon of `privacy.observer` to the metrics of some rounds, always to those of the last.

    meter = Meter()
    fedceo.run(experiment, on_start=meter.begin, on_round=lambda metrics: print(meter.read(metrics)))
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._simulation: Simulation | None = None
        self._seconds, self._slowest = 0.0, FIRST_ANSWER

    def begin(self, simulation: "Simulation") -> None:
        """Watch this simulation from now on."""
        self._simulation = simulation if simulation.mechanism.adds_noise else None
        self._start = self._clock()

    def read(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """A round's metrics, with "epsilon", the epsilon spent up to this round, where there was time to compute it."""
        if self._simulation is None:
            return metrics
        now = self._clock()
        last = metrics["round"] == self._simulation.experiment.train.rounds  # the result needs its epsilon
        if not last and TIME_FRACTION * (now - self._start) < self._seconds + self._slowest:
            return metrics
        epsilon = _epsilon(self._simulation)
        if epsilon is None:  # there is no guarantee against this observer, and later rounds bring none
            self._simulation = None
            return metrics
        took = self._clock() - now
        self._seconds, self._slowest = self._seconds + took, max(self._slowest, took)
        return metrics | {"epsilon": epsilon}


def _epsilon(simulation: "Simulation") -> float | None:
    from fedceo.accounting.rows import answer
    from fedceo.simulation.spending import privacy_plan

    experiment, sizes = simulation.experiment, simulation.federation.sizes.tolist()
    plan = privacy_plan(experiment, sizes, simulation.noise_multiplier)
    return answer(plan, experiment.privacy.observer, simulation.ledger.realised(plan)).epsilon


def events(folder: Path) -> Advance:
    """A function that writes each round's numbers, and pictures of recorded rounds, as TensorBoard events."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError("--tensorboard: needs the extra fedceo[tensorboard]") from None
    writers: list[SummaryWriter] = []

    def write(metrics: dict[str, Any]) -> None:
        if not writers:  # the run creates the folder, before its first round
            writers.append(SummaryWriter(str(folder / "events")))
        for name, value in metrics.items():
            if isinstance(value, float):
                writers[0].add_scalar(name, value, metrics["round"])
        recorded = folder / "records" / f"round-{metrics['round']:05}.safetensors"
        if recorded.exists():
            from fedceo.report.figures import of_recording, read_recording  # slow to import, and not always needed

            for name, drawing in of_recording(read_recording(recorded)).items():
                writers[0].add_figure(name, drawing.figure, metrics["round"])
        writers[0].flush()

    return write

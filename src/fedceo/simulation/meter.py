"""The epsilon that a run in progress has spent so far, without the accountant in every round."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedceo.tasks import is_measured

if TYPE_CHECKING:
    from fedceo.simulation.rounds import Simulation

TIME_FRACTION = 0.05
"""The most that accounting may take of a run's time: one answer of the accountant can take a second."""
FREE_SECONDS = 2.0
"""Seconds beyond that: most answers take milliseconds, and short runs tell theirs too."""


class Meter:
    """A meter that adds the epsilon of `privacy.observer` to the metrics of measured rounds, and always of the last.

    meter = Meter()
    fedceo.run(experiment, on_start=meter.begin, on_round=lambda metrics: print(meter.read(metrics)))
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._simulation: Simulation | None = None
        self._seconds, self._slowest = 0.0, 0.0

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
        in_time = self._seconds + self._slowest <= FREE_SECONDS + TIME_FRACTION * (now - self._start)
        if not last and not (in_time and is_measured(metrics)):
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
    from fedceo.simulation.spending import spent_plan

    experiment, sizes = simulation.experiment, simulation.federation.sizes.tolist()
    plan = spent_plan(experiment, sizes, simulation.noise_multiplier, simulation.ledger)
    return answer(plan, experiment.privacy.observer, simulation.ledger.realised(plan)).epsilon

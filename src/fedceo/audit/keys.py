"""Keys of the random streams: no two of them may be alike, for noise that comes twice can be subtracted."""

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from fedceo.audit.findings import ALPHA, Finding
from fedceo.training.schedule import SECRET

if TYPE_CHECKING:
    from fedceo.simulation.rounds import Simulation

STREAMS = 20_000
"""First draws that are compared; each has 63 bits, so that chance makes no two alike."""
AT_ONCE = ("batches", "record noise")
"""Secret purposes for which a GPU draws the keys of a round's clients at once."""


def key_findings(simulation: "Simulation") -> list[Finding]:
    """First draws of many streams of the run; where they come from the operating system, each is asked for twice."""
    schedules = {id(s): s for s in (simulation.mechanism.schedule, simulation.context.schedule)}.values()
    times = 1 if simulation.experiment.privacy.randomness == "seeded" else 2
    alike = 0
    rounds, clients = simulation.experiment.train.rounds, simulation.federation.clients
    for schedule in schedules:
        asked = itertools.product(range(1, rounds + 1), SECRET, range(clients))
        stride = max(1, rounds * clients * len(SECRET) // STREAMS)
        some = itertools.islice(asked, 0, None, stride | 1)
        first = [
            int(schedule.generator(purpose, t, client).integers(2**63))
            for t, purpose, client in some
            for _ in range(times)
        ]
        every = max(1, rounds * clients * len(AT_ONCE) // STREAMS)
        for t, purpose in itertools.product(range(1, rounds + 1, every), AT_ONCE):
            of_round = range(min(clients, STREAMS))
            first += [key for _ in range(times) for key in schedule.keys(purpose, t, of_round).tolist()]
        alike += len(first) - len(np.unique(np.array(first, dtype=np.int64)))
        compared = len(first)
    bits = max(0, int(math.log2(max(compared**2 / (2 * math.log(1 / ALPHA)), 1))))
    expected = f"0 of {compared} streams like another; keys of {bits} bits or fewer would have shown"
    return [Finding("keys", alike == 0, float(alike), expected)]

"""The cost of noise: NumPy's generator, the operating system's, and noise on a lattice.

python benchmarks/noise.py [--count 1000000]

Prints nanoseconds for each number, the best of five turns, and milliseconds for the uploads of ten clients with a model
of a hundred thousand parameters.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from fedceo.mechanisms.base import MECHANISMS
from fedceo.mechanisms.lattice import FINENESS, rounded_normals
from fedceo.mechanisms.uploads import Contribution, Senders
from fedceo.training.schedule import Schedule

CLIENTS, ENTRIES, TURNS = 10, 100_000, 5


def fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of a few turns."""
    seconds = []
    for _ in range(TURNS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def upload_seconds(randomness: str, kind: str) -> float:
    made = MECHANISMS["distributed"](1.0, 1.0, Schedule(0, randomness), min_reports=CLIENTS, noise_kind=kind)
    start = {"w": torch.zeros(CLIENTS, ENTRIES)}
    sent = Contribution(start, {"w": torch.randn(CLIENTS, ENTRIES)})
    senders = Senders(1, tuple(range(CLIENTS)), torch.ones(CLIENTS))
    return fastest(lambda: made.privatise(sent, senders, {"w": start["w"][0]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    count = parser.parse_args().count
    torch.set_num_threads(1)
    seeded, system = np.random.default_rng(0), Schedule(0, "system").generator("upload noise")
    draws: dict[str, Callable[[], object]] = {
        "NumPy, float32": lambda: seeded.standard_normal(count, dtype=np.float32),
        "NumPy, float64": lambda: seeded.standard_normal(count),
        "operating system, bits alone": lambda: system.bytes(8 * count),
        "operating system, float32": lambda: system.standard_normal(count, dtype=np.float32),
        "lattice, NumPy's bits": lambda: rounded_normals(count, FINENESS, seeded),
        "lattice, operating system's bits": lambda: rounded_normals(count, FINENESS, system),
    }
    print("ns for each number")
    for name, draw in draws.items():
        print(f"  {name:34}{1e9 * fastest(draw) / count:8.1f}")
    print(f"ms for {CLIENTS} uploads of {ENTRIES} entries")
    for randomness in ("seeded", "system"):
        for kind in ("gaussian", "lattice"):
            print(f"  {randomness}, {kind:26}{1e3 * upload_seconds(randomness, kind):8.1f}")


if __name__ == "__main__":
    main()

"""Seconds that `calibrate` takes in large federations, and how near its answer is to the least noise that does.

    python benchmarks/calibration.py

The least noise lies between the answer and one that is 0.5 % smaller, if the latter misses the target; this is checked.
"""

import time
from dataclasses import replace

from fedceo.accounting import Plan, calibrate
from fedceo.accounting.rows import answer

TARGETS = (0.5, 2.0, 8.0)
CLOSE = 0.995


def plans() -> dict[str, Plan]:
    """A million clients, a thousand a round: every mechanism and sampling that hides clients from an outsider."""
    usual = Plan(10**6, 1000, 1000, 1.0, 1e-7, "central", sampling="poisson")
    return {
        "central, Poisson": usual,
        "central, Poisson, replace-one": replace(usual, adjacency="replace-one"),
        "central, Poisson, 100,000 rounds": replace(usual, rounds=100_000),
        "central, Poisson, delta 1e-14": replace(usual, delta=1e-14),
        "distributed, fixed size": replace(usual, mechanism="distributed", sampling="fixed"),
        "distributed, Poisson": replace(usual, mechanism="distributed"),
        "distributed, fixed size, personal models": replace(
            usual, mechanism="distributed", sampling="fixed", release="personalised", interval=10
        ),
    }


def main() -> None:
    for name, plan in plans().items():
        for target in TARGETS:
            start = time.perf_counter()
            sigma = calibrate(target, "outsider", plan)
            seconds = time.perf_counter() - start
            less = answer(replace(plan, noise_multiplier=CLOSE * sigma), "outsider").epsilon
            is_close = less is not None and less > target
            print(f"{name:42} epsilon {target:<4g} sigma {sigma:<8.4g} {seconds:6.1f} s  within 0.5 %: {is_close}")


if __name__ == "__main__":
    main()

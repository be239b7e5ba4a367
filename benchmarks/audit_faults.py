"""Prints how often an audit finds each planted fault, and how long it takes: fault, caught of 10, seconds.

    PYTHONPATH=. python benchmarks/audit_faults.py [--times 10] [--only WORDS] [--right 100]

With --right, audits of the program as it is are counted instead, over all mechanisms: none of them may raise an alarm.
"""

import argparse
import time

from fedceo.audit.report import audit
from tests.support.run_faults import RIGHT, ROUNDS, RUN_FAULTS, found_by, simulation_of


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--times", type=int, default=10)
    options.add_argument("--only", default="")
    options.add_argument("--right", type=int, default=0)
    asked = options.parse_args()
    if asked.right:
        alarms = 0
        for turn in range(asked.right):
            name, settings = list(RIGHT.items())[turn % len(RIGHT)]
            alarm = found_by(audit(simulation_of(settings, turn), rounds=ROUNDS))
            alarms += bool(alarm)
            if alarm:
                print(f"{name}, seed {turn}: {', '.join(alarm)}", flush=True)
        print(f"false alarms: {alarms} of {asked.right}")
        return
    print(f"| fault | caught of {asked.times} | seconds each | by |")
    print("|---|---|---|---|")
    for name, fault in RUN_FAULTS.items():
        if asked.only not in name:
            continue
        caught, seconds, by = 0, 0.0, dict[str, int]()
        for seed in range(asked.times):
            with fault.planted():
                broken = simulation_of(fault.settings, seed)
                start = time.perf_counter()
                found = found_by(audit(broken, rounds=ROUNDS))
            seconds += time.perf_counter() - start
            caught += bool(found)
            for check in found:
                by[check] = by.get(check, 0) + 1
        most = sorted(by, key=lambda check: -by[check])[:3]
        print(f"| {name} | {caught} | {seconds / asked.times:.1f} | {', '.join(most)} |", flush=True)


if __name__ == "__main__":
    main()

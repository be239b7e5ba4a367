"""How often an audit catches each planted fault, and how often it raises an alarm where nothing is planted.

    PYTHONPATH=. python benchmarks/audit_faults.py [--times 10] [--right 100] [--only WORDS] [--out FILE]

Faults are those of tests/support/run_faults.py, each planted in the code that runs. Prints fault, caught of 10, seconds
of one audit on one core, and the checks or views that caught it most often; then false alarms over all mechanisms.
"""

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from report import RESULTS, write

from fedceo.audit.report import audit
from tests.support.run_faults import RIGHT, ROUNDS, RUN_FAULTS, RunFault, found_by, simulation_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10, help="audits of each fault")
    parser.add_argument("--right", type=int, default=100, help="audits without a fault")
    parser.add_argument("--only", default="", help="words in the names of the faults wanted")
    parser.add_argument("--out", type=Path, default=RESULTS / "audit-faults.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| fault | caught of {options.times} | seconds | by |\n|---|---|---|---|")
    rows = []
    for name, fault in RUN_FAULTS.items():
        if options.only in name:
            rows.append({"fault": name} | caught(fault, options.times))
            print("| {fault} | {caught} | {seconds:.1f} | {by} |".format(**rows[-1]), flush=True)
    alarms = [each for turn in range(options.right) for each in false_alarms(turn)]
    print(f"\nfalse alarms: {len(alarms)} of {options.right}", *alarms, sep="\n")
    write({"times": options.times, "faults": rows, "right": options.right, "false_alarms": alarms}, options.out)


def caught(fault: RunFault, times: int) -> dict[str, Any]:
    """Audits of runs with other seeds: in how many the fault was found, the mean time, and what found it."""
    found, seconds, by = 0, 0.0, Counter[str]()
    for seed in range(times):
        with fault.planted():
            broken = simulation_of(fault.settings, seed)
            start = time.process_time()
            names = found_by(audit(broken, rounds=ROUNDS))
        seconds += time.process_time() - start
        found += bool(names)
        by.update(names)
    return {"caught": found, "seconds": seconds / times, "by": ", ".join(name for name, _ in by.most_common(3))}


def false_alarms(turn: int) -> list[str]:
    """The alarm of one audit without a fault, if there is one."""
    name, settings = list(RIGHT.items())[turn % len(RIGHT)]
    found = found_by(audit(simulation_of(settings, turn), rounds=ROUNDS))
    return [f"{name}, seed {turn}: {', '.join(found)}"] if found else []


if __name__ == "__main__":
    main()

"""Time of starting: the import, the help, and an epsilon from an experiment file, which needs no torch.

    python benchmarks/startup.py [--runs 7] [--out FILE]

Medians of whole processes, by turns, in milliseconds of wall clock and of CPU. The first rows are floors: Python, and
torch, which whatever trains has to wait for.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import RESULTS, write

FILE = """
[data]
name = "digits"
clients = 100
[train]
rounds = 100
[privacy]
mechanism = "distributed"
noise_multiplier = 1.0
[method]
name = "fedceo"
"""
FLOORS = {"python": ["-c", "pass"], "import torch": ["-c", "import torch"]}
SLOW = ("torch", "scipy", "numpy", "pydantic", "rich", "matplotlib")


def measure(arguments: list[str]) -> tuple[float, float]:
    """Milliseconds of wall clock and of CPU that one process takes."""
    before, begin = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    wall, after = time.perf_counter() - begin, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return 1e3 * wall, 1e3 * cpu


def imported(arguments: list[str]) -> list[str]:
    """Those of the slow libraries that a process imports."""
    command = [sys.executable, "-X", "importtime", *arguments]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    names = {line.rpartition("|")[2].strip() for line in said.splitlines()}
    return [name for name in SLOW if name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS / "startup-cpu.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "experiment.toml"
        file.write_text(FILE)
        commands = FLOORS | {
            "import fedceo": ["-c", "import fedceo"],
            "fedceo --help": ["-m", "fedceo", "--help"],
            "fedceo privacy account FILE": ["-m", "fedceo", "privacy", "account", str(file)],
            "fedceo list": ["-m", "fedceo", "list"],
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(options.runs):
            for name, arguments in commands.items():
                times[name].append(measure(arguments))
        rows = []
        print(f"{'':<30}{'wall, ms':>10}{'CPU, ms':>10}   imports")
        for name, arguments in commands.items():
            wall, cpu = (statistics.median(each) for each in zip(*times[name], strict=True))
            row = {"command": name, "wall_ms": wall, "cpu_ms": cpu, "imports": imported(arguments)}
            print(f"{name:<30}{wall:>10.0f}{cpu:>10.0f}   {', '.join(row['imports'])}")
            rows.append(row)
    write({"rows": rows}, options.out)


if __name__ == "__main__":
    main()

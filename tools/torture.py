"""Kills, full disks and flipped bytes: does every run survive, or say in one line why it does not?

    OMP_NUM_THREADS=1 PYTHONPATH=. python tools/torture.py --kills 1000 --flips 500

A run, a federation and a federation that its budget ends are

- killed (SIGKILL) at random moments, three times in a row, and continued;
- stopped at every single step of their writing (open, write, sync, rename, removal, new folder), once by a full disk
  and once by the end of the process, a write after half its bytes, and continued;

and their ends are compared with those of runs that were left alone: the same bits, the same files, no spending
forgotten. Then single bytes of all files of finished and unfinished folders are changed: each reader must refuse the
folder in one line or say what it said before. Prints a table; exits with 1 where anything did not survive.
"""

import argparse
import logging
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.support.federated_survival import PLAIN, asking, differences_by_budget, federated, plain, with_budget
from tests.support.flips import FINISHED, UNFINISHED, Flips, interrupted, resumed
from tests.support.survival import Survival, differences, simulated

SUBJECTS = {
    "run": (simulated, differences),
    "federation": (plain, differences),
    "federation, budget": (with_budget, differences_by_budget),
}


def disturbed(kills: int, scratch: Path) -> Iterator[tuple[str, str, int, list[str]]]:
    """Rows of the table: subject, disturbance, how many, failures."""
    rng = random.Random(0)
    for name, (work, compare) in SUBJECTS.items():
        folder = scratch / name
        folder.mkdir()
        survival = Survival(work, folder, compare)
        killed, share = 0, -(-kills // len(SUBJECTS))
        while killed < share:
            killed += survival.kill(min(3, share - killed), rng)
        yield name, "kills", killed, survival.taken_failures()
        steps = survival.steps()
        for how in ("full", "exit"):
            for step in range(1, steps + 1):
                survival.fail(step, how)
            yield name, f"{how} at every step", steps, survival.taken_failures()


def flipped(flips: int, scratch: Path) -> Iterator[tuple[str, str, int, list[str]]]:
    """Rows of the table: folder, counts, flips, failures."""
    rng = random.Random(1)
    folders = {
        "finished run": (simulated, FINISHED),
        "unfinished run": (interrupted, UNFINISHED | {"resume": resumed(simulated)}),
        "finished federation": (lambda out: federated(PLAIN, out), FINISHED),
        "unfinished federation": (asking, UNFINISHED | {"resume": resumed(plain)}),
    }
    for name, (make, readers) in folders.items():
        folder = scratch / name / "run"
        folder.parent.mkdir()
        make(folder)
        tried = Flips(folder, readers)
        files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
        for number in range(-(-flips // len(folders))):
            tried.flip(files[number % len(files)], rng)
        what = f"flips in {len(files)} files: {tried.refused} refused, {tried.harmless} harmless"
        yield name, what, tried.refused + tried.harmless, tried.failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--flips", type=int, default=500)
    options = parser.parse_args()
    logging.disable(logging.INFO)  # of Flower, about every round
    torch.set_num_threads(1)  # processes are forked, which torch's threads do not survive
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        began = time.perf_counter()
        for rows in (disturbed(options.kills, Path(scratch)), flipped(options.flips, Path(scratch))):
            for subject, what, count, failures in rows:
                seconds = time.perf_counter() - began
                print(f"{subject:22} {what:48} {count:5} {len(failures):3} failed {seconds:6.0f} s", flush=True)
                print(*(f"    {failure}" for failure in failures[:20]), sep="\n", end="\n" if failures else "")
                failed += len(failures)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()

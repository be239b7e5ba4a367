"""Runs and federations that are killed, run out of disk or lose a byte, and how their ends are compared.

Everything happens in forked processes, which are fast to start and may end at any moment.
"""

import os
import random
import shutil
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sklearn.datasets
import torch

import fedceo
from fedceo.errors import UsageError
from fedceo.simulation.folder import RunFolder, read_recording
from tests.support.failing_disk import EXIT, How, failing_disk

TABLE: dict[str, Any] = {
    "data": {"name": "digits", "clients": 20},
    "model": {"name": "logistic"},
    "cohort": {"size": 2},
    "train": {"rounds": 5, "local_epochs": 1, "batch_size": 64, "engine": "loop"},
    "privacy": {"mechanism": "distributed", "noise_multiplier": 0.5},
    "method": {"name": "fedceo", "interval": 2, "strength": 5.0},
    "evaluation": {"every": 4},
    "checkpoint": {"every": 2},
    "record": {"every": 3},
}
REFUSED, BROKEN = 2, 1
"""Exit codes of a process: one line for the user, and anything else that went wrong."""
Work = Callable[[Path], object]
"""Begins the run in a folder, or goes on with it, to its end."""


@dataclass(frozen=True)
class End:
    """What a finished folder holds that must not depend on what happened on the way.

    Attributes:
        ledger: empty where a lost round has an entry of its own, since its noise cannot be repeated.
    """

    files: tuple[str, ...]
    weights: dict[str, list[Any]]
    metrics: bytes
    ledger: bytes
    participations: dict[int, int]
    accuracy: dict[str, Any]


def end_of(out: Path) -> End:
    folder = RunFolder(out)
    experiment, result = folder.experiment(), folder.result()
    seeded = experiment.privacy.randomness == "seeded"
    ledger = folder.ledger(repeatable=seeded, least=result["ledger"])
    folder.history(result["rounds"])
    for file in folder.recordings():
        read_recording(file)
    return End(
        files=tuple(sorted(str(file.relative_to(out)) for file in out.rglob("*"))),
        weights={name: w.tolist() for name, w in folder.load_model().items()},
        metrics=(out / "metrics.jsonl").read_bytes(),
        ledger=(out / "ledger.jsonl").read_bytes() if seeded else b"",
        participations=dict(ledger.participations),
        accuracy=result["accuracy"],
    )


def differences(end: End, undisturbed: End) -> list[str]:
    """The parts of a disturbed run's end that are not as they should be."""
    found = [
        name
        for name in ("files", "weights", "metrics", "ledger", "accuracy")
        if getattr(end, name) != getattr(undisturbed, name)
    ]
    under = any(end.participations.get(k, 0) < count for k, count in undisturbed.participations.items())
    return [*found, *(["ledger is under"] if under else [])]


def simulated(out: Path) -> None:
    """The run above; it repeats itself, so that it ends as if nothing had happened."""
    if RunFolder(out).exists:
        fedceo.resume(out)
    else:
        fedceo.run(TABLE, out=out)


def uploads_beside(out: Path) -> Path:
    """The file in which a federation notes, for the comparison, the client of each upload that it asks for."""
    return out.with_name("uploads.txt")


DIGITS = sklearn.datasets.load_digits()
"""Read once: a federation reads them for every message, which takes longer than its rounds."""


def start(work: Callable[[], object], log: Path) -> int:
    """Fork a process that does the work; it ends with 0, REFUSED or BROKEN, and leaves what it said in a file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child has none of
        child = os.fork()
    if child:
        return child
    code = BROKEN
    try:
        torch.set_num_threads(1)
        read_once = patch.object(sklearn.datasets, "load_digits", lambda: DIGITS)
        with log.open("w") as said, read_once, redirect_stdout(said), redirect_stderr(said):
            try:
                work()
                code = 0
            except UsageError as error:
                print(error)
                code = BROKEN if "\n" in str(error) else REFUSED
            except BaseException:
                traceback.print_exc()
    finally:
        os._exit(code)


def wait(child: int) -> int:
    """The exit code of a process, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Survival:
    """Disturbs one kind of run again and again; `failures` gathers what did not survive.

    Args:
        work: begins the run in a folder, or goes on with it.
        scratch: a folder for the runs.
        compare: names the parts of a disturbed end that differ from an undisturbed one and should not.
    """

    def __init__(self, work: Work, scratch: Path, compare: Callable[[End, End], list[str]] = differences) -> None:
        self.work, self.scratch, self.compare = work, scratch, compare
        self.failures: list[str] = []
        self.log = scratch / "said.txt"
        with patch.object(sklearn.datasets, "load_digits", lambda: DIGITS):
            work(scratch / "here")  # so that processes are forked with everything imported
        whole, began = scratch / "whole", time.perf_counter()
        assert wait(start(lambda: work(whole), self.log)) == 0, self.log.read_text()
        self.seconds = time.perf_counter() - began
        self.undisturbed = end_of(whole)

    def steps(self) -> int:
        """The number of steps in which the run writes."""
        noted = self.scratch / "steps.txt"

        def count() -> None:
            with failing_disk(self.scratch / "out", 0, "full") as steps:
                self.work(self.scratch / "out")
            noted.write_text("\n".join(steps))

        self._fresh()
        assert wait(start(count, self.log)) == 0, self.log.read_text()
        return len(noted.read_text().split("\n"))

    def fail(self, step: int, how: How) -> None:
        """Let the disk fail at one step, and go on with the run."""
        out = self._fresh()

        def faulty() -> None:
            with failing_disk(out, step, how):
                self.work(out)

        code = wait(start(faulty, self.log))
        if code not in ({EXIT} if how == "exit" else {REFUSED, 0}):
            self.failures.append(f"{how} at step {step}: exit code {code}, {self._said()}")
        if how == "full" and list(out.rglob("*.part")):
            self.failures.append(f"{how} at step {step}: a part is left behind")
        self._finish(f"{how} at step {step}")

    def kill(self, kills: int, rng: random.Random) -> int:
        """Kill the run at several random moments, and go on with it; returns how often it was killed."""
        out, killed = self._fresh(), 0
        for _ in range(kills):
            child = start(lambda: self.work(out), self.log)
            time.sleep(rng.uniform(0, self.seconds))
            os.kill(child, signal.SIGKILL)
            code = wait(child)
            killed += code == -signal.SIGKILL
            self.seconds *= 0.9 if code == 0 else 1.03  # a machine may become slower or faster
            if code not in (0, -signal.SIGKILL):
                self.failures.append(f"killed: exit code {code}, {self._said()}")
            if RunFolder(out).finished:
                break
        self._finish("killed")
        return killed

    def _finish(self, what: str) -> None:
        out = self.scratch / "out"
        if not RunFolder(out).finished and (code := wait(start(lambda: self.work(out), self.log))) != 0:
            self.failures.append(f"{what}: going on ends with exit code {code}, {self._said()}")
            return
        end = end_of(out)
        found = self.compare(end, self.undisturbed)
        uploads = Counter(uploads_beside(out).read_text().split() if uploads_beside(out).exists() else [])
        if any(end.participations.get(int(client), 0) < count for client, count in uploads.items()):
            found.append("the ledger lacks uploads that were asked for")
        if found:
            self.failures.append(f"{what}: another end: {', '.join(found)}")

    def _fresh(self) -> Path:
        shutil.rmtree(self.scratch / "out", ignore_errors=True)
        uploads_beside(self.scratch / "out").unlink(missing_ok=True)
        return self.scratch / "out"

    def taken_failures(self) -> list[str]:
        """The failures since the last call."""
        taken, self.failures = self.failures, []
        return taken

    def _said(self) -> str:
        return self.log.read_text().strip()[-2000:]

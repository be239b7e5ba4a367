"""Runs and federations that are killed, run out of disk or lose a byte, and how their ends are compared.

Everything happens in forked processes, which are fast to start and may end at any moment.
"""

import io
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sklearn.datasets
import torch

import fedceo
from fedceo.cli.app import main
from fedceo.errors import UsageError
from fedceo.report.loading import load_runs
from fedceo.simulation.folder import RunFolder, read_recording
from fedceo.simulation.release import release
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
        found = self.compare(end_of(out), self.undisturbed)
        if found:
            self.failures.append(f"{what}: another end: {', '.join(found)}")

    def _fresh(self) -> Path:
        shutil.rmtree(self.scratch / "out", ignore_errors=True)
        return self.scratch / "out"

    def taken_failures(self) -> list[str]:
        """The failures since the last call."""
        taken, self.failures = self.failures, []
        return taken

    def _said(self) -> str:
        return self.log.read_text().strip()[-2000:]


def flip(file: Path, rng: random.Random) -> str:
    """Change one random byte of a file in any way; says which."""
    content = bytearray(file.read_bytes())
    place, change = rng.randrange(len(content)), rng.randrange(1, 256)
    content[place] ^= change
    file.write_bytes(content)
    return f"byte {place} of {file.name} xor {change}"


def command(*words: str) -> Callable[[Path], object]:
    """What a command of the program prints about a folder; refused like the program: in one line, with exit code 2."""

    def said(folder: Path) -> object:
        out, err = io.StringIO(), io.StringIO()
        arguments = ["fedceo", *(str(folder) if word == "FOLDER" else word for word in words)]
        with patch.object(sys, "argv", arguments), redirect_stdout(out), redirect_stderr(err):
            try:
                main()
            except SystemExit as ended:
                code = ended.code
        if code == 2 and err.getvalue().count("\n") == 1:
            raise UsageError(err.getvalue())
        assert code in (0, None), err.getvalue()
        return out.getvalue()

    return said


def loaded(folder: Path) -> object:
    run = fedceo.load(folder)
    weights = {name: w.tolist() for name, w in run.weights.items()}
    return weights, run.history, run.result, run.ledger.entries


def reported(folder: Path) -> object:
    (run,) = load_runs([folder])
    found = [read_recording(file) for file in run.recordings]
    recordings = [(each.clients, each.thresholds, each.noise, str(each.stacks), str(each.accuracy)) for each in found]
    return run.history, run.result, recordings


def released(folder: Path) -> object:
    out = folder.with_name("released")
    shutil.rmtree(out, ignore_errors=True)
    release(folder, out)
    return (out / "model.safetensors").read_bytes(), json.loads((out / "card.json").read_text())


FINISHED: dict[str, Callable[[Path], object]] = {
    "load": loaded,
    "show": command("show", "FOLDER", "--json"),
    "account": command("privacy", "account", "FOLDER", "--json"),
    "report": reported,
    "release": released,
}
"""Readers of a finished run by name."""
UNFINISHED: dict[str, Callable[[Path], object]] = {
    "account": command("privacy", "account", "FOLDER", "--json"),
    "report": reported,
}
"""Readers of an unfinished run, beside going on with it."""


class Flips:
    """Changes bytes in copies of a folder and reads them; `refused` and `harmless` count flips, `failures` the rest."""

    def __init__(self, folder: Path, readers: dict[str, Callable[[Path], object]]) -> None:
        self.folder, self.readers = folder, readers
        self.right = {name: reader(self._copy()) for name, reader in readers.items()}
        self.refused = self.harmless = 0
        self.failures: list[str] = []

    def flip(self, file: str, rng: random.Random) -> None:
        """Flip one byte of a file, and read the folder in every way."""
        what = flip(self._copy() / file, rng)
        is_refused = False
        for name, reader in self.readers.items():
            copy = self._copy(what_to_keep=file)
            try:
                if reader(copy) != self.right[name]:
                    self.failures.append(f"{what}: {name} says something else")
            except UsageError as error:
                is_refused = True
                if "\n" in str(error).strip():
                    self.failures.append(f"{what}: {name} is refused in several lines")
            except Exception as error:  # whatever else happens is what must not
                self.failures.append(f"{what}: {name} ends with {type(error).__name__}: {error}")
        self.refused += is_refused
        self.harmless += not is_refused

    def _copy(self, what_to_keep: str | None = None) -> Path:
        copy = self.folder.with_name("copy")
        kept = (copy / what_to_keep).read_bytes() if what_to_keep else None
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder, copy)
        if what_to_keep and kept is not None:
            (copy / what_to_keep).write_bytes(kept)
        return copy

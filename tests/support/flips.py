"""Folders with flipped bytes, and everything that reads them."""

import io
import json
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fedceo
from fedceo.cli.app import main
from fedceo.errors import UsageError
from fedceo.report.loading import load_runs
from fedceo.simulation.folder import read_recording
from fedceo.simulation.release import release
from tests.support.small_runs import KilledError
from tests.support.survival import TABLE, Work, end_of


def interrupted(out: Path) -> None:
    """Leave a run as a kill does after its third round, with a checkpoint of the second and a recording."""

    def kill(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise KilledError

    try:
        fedceo.run(TABLE, out=out, on_round=kill)
    except KilledError:
        return


def resumed(work: Work) -> Callable[[Path], object]:
    """A reader that goes on with an unfinished folder to its end."""

    def end(folder: Path) -> object:
        work(folder)
        return end_of(folder)

    return end


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

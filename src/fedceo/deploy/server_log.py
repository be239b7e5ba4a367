"""The server's run folder: that of a simulation, with two more files, asked.json and nodes.json."""

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedceo.accounting.ledger import Entry, Ledger
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment, to_toml
from fedceo.methods import State
from fedceo.simulation.averaging import Average
from fedceo.simulation.folder import RunFolder
from fedceo.tensors.weights import Weights


class ServerLog:
    """The log of a new run, or of an unfinished one of the same experiment, which is resumed.

    Attributes:
        state, round: the state after the last round, and its number.
        average: that of the global models of its rounds, where [release] asks for one.
        ledger, history: the privacy ledger, and the metrics of each round.
        keys: client -> public key.
    """

    def __init__(self, path: Path, experiment: Experiment, beginning: State) -> None:
        self.folder, self.experiment = RunFolder(path), experiment
        self.identity = _identity(experiment, beginning)
        self.state, self.round, seconds = beginning, 0, 0.0
        self.average: Average | None = None
        self.history: list[dict[str, Any]] = []
        self.ledger = Ledger(repeatable=False)
        self.keys: dict[int, str] = {}
        self.folder.hold()
        try:
            if self.folder.exists:
                seconds = self._go_on(beginning)
            else:
                self.folder.create(experiment, beginning, self._about(0.0))
        except BaseException:
            self.release()
            raise
        self._start = time.perf_counter() - seconds

    @property
    def seconds(self) -> float:
        """Seconds since the run began, over all its processes."""
        return time.perf_counter() - self._start

    def ask(self, entry: Entry) -> None:
        """Note the clients about to be asked, before any is; entry.unused: all whose uploads may then be seen."""
        self.folder.ask(entry, len(self.ledger.entries))

    def spend(self, entry: Entry) -> None:
        """Write a round into the ledger, before anything of it is released."""
        self.folder.spend(entry)
        self.ledger.add(entry)
        self.folder.forget_asked()

    def close(self, metrics: dict[str, Any], state: State, average: Average | None) -> None:
        """Note the metrics of a finished round, its state, and the average up to it."""
        self.state, self.round, self.average = state, metrics["round"], average
        self.history.append(metrics)
        self.folder.append(metrics)
        if self.round % self.experiment.checkpoint.every == 0:
            self.folder.save_checkpoint(state, self._about(self.seconds), average)

    def amend(self, more: dict[str, Any]) -> None:
        """Add to the metrics of the last round."""
        self.history[-1] |= more
        self.folder.rewrite(self.history)

    def remember_keys(self, keys: Mapping[int, str]) -> None:
        if keys != self.keys:
            self.keys = dict(keys)
            self.folder.save_nodes(self.keys)

    def finish(self, result: dict[str, Any], fixed: Weights) -> None:
        """Write the model and the summary; fixed: the parts of the model that no training changes."""
        self.folder.save_model({**self.state.weights, **fixed})
        if self.average is not None:
            self.folder.save_model({**self.average.weights, **fixed}, "average")
        self.folder.save_result(result)
        self.release()

    def release(self) -> None:
        """Release the lock on the folder, as the end of this process would."""
        self.folder.let_go()

    def _go_on(self, beginning: State) -> float:
        path = self.folder.path
        if self.folder.finished:
            raise UsageError(f"{path}: holds a finished run; choose another folder for `out`")
        self.folder.experiment()  # which is refused where it is not as it was written
        state, about, average, _ = self.folder.load_checkpoint()
        if about["identity"] != self.identity:
            raise UsageError(f"{path}: holds a run of another experiment; choose another folder for `out`")
        self.folder.mend()
        self.ledger = self.folder.ledger(repeatable=False, least=about["ledger"])
        self.keys = self.folder.nodes()
        self.history = self.folder.rewind(about["round"])
        self.state, self.round = state.placed_like(beginning.weights), about["round"]
        self.average = None if average is None else average.placed_like(beginning.weights)
        return float(about["seconds"])

    def _about(self, seconds: float) -> dict[str, Any]:
        spent = len(self.ledger.entries)
        return {"round": self.round, "seconds": seconds, "ledger": spent, "identity": self.identity}


def _identity(experiment: Experiment, beginning: State) -> str:
    """A digest of everything on which the continuation of a checkpoint depends."""
    shapes = {name: tuple(w.shape) for name, w in beginning.weights.items()}
    return hashlib.sha256(f"{to_toml(experiment)} {shapes} flower".encode()).hexdigest()

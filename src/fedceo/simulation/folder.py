"""A run's folder on disk. A file appears whole or not at all; nothing is pickled.

experiment.toml         the experiment, every field resolved
metrics.jsonl           one line a round
ledger.jsonl            one line a round, written before anything of the round is released and never taken back
checkpoint.safetensors  the last state, with the round and what else is needed to go on
model.safetensors       the trained global model, once finished
result.json             the summary, once finished
records/                the cohort's models of a few rounds, where [record] asks for them
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedceo.accounting.ledger import Entry, Ledger
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment, load_experiment, to_toml
from fedceo.methods import State
from fedceo.simulation.recording import Recording

try:
    import fcntl
except ImportError:  # Windows, where folders are not locked
    fcntl = None  # type: ignore[assignment]

BEGINNING = ("checkpoint.safetensors", "experiment.toml")
"""Files that a run may leave behind if it is killed while it begins."""
SHOWN = (
    "method", "data", "model", "regime", "noise_multiplier", "seed", "rounds", "ended_early", "discarded_rounds",
    "seconds", "accuracy", "privacy", "nonfinite_updates", "clients", "record_shape", "classes", "engine", "device",
    "versions",
)  # fmt: skip
"""Fields that a summary must have to be shown; folders of earlier versions may lack some of them."""


class RunFolder:
    """Reads and writes one run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        return (self.path / "experiment.toml").exists()

    @property
    def is_federation(self) -> bool:
        """Whether the server of a federation writes it (fedceo.deploy), not a simulation."""
        return (self.path / "nodes.json").exists()

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def hold(self) -> int:
        """Lock the folder, made if it is not there, for this process, until os.close or the end of the process."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written to ({error.strerror})") from None
        if fcntl is None:
            return os.open(os.devnull, os.O_RDONLY)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(folder)
            raise UsageError(f"{self.path}: another process is at work there") from None
        return folder

    @contextmanager
    def held(self) -> Iterator[None]:
        """The lock of `hold`, while inside."""
        folder = self.hold()
        try:
            yield
        finally:
            os.close(folder)

    def create(self, experiment: Experiment, state: State, about: dict[str, Any]) -> None:
        """Save the beginning of a new run in a folder that is held; one that has anything else in it is refused.

        The experiment comes last: with it there is a run that can be resumed, without it there is none yet.
        """
        if self.exists:
            raise UsageError(
                f"{self.path}: holds a run already; resume it (--resume, or fedceo.resume in Python) or choose another "
                "folder"
            )
        try:
            if any(file.name.removesuffix(".part") not in BEGINNING for file in self.path.iterdir()):
                raise UsageError(f"{self.path}: not an empty folder")
            self.save_checkpoint(state, about)
            write_whole(self.path / "experiment.toml", to_toml(experiment).encode())
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written to ({error.strerror})") from None

    def experiment(self) -> Experiment:
        if not self.exists:
            raise UsageError(f"{self.path}: not a run folder, it has no experiment.toml")
        return load_experiment(self.path / "experiment.toml")

    def append(self, record: dict[str, Any]) -> None:
        """Add one round to metrics.jsonl; on return it is on the disk, where a checkpoint will count on it."""
        self._add_line("metrics.jsonl", record)

    def history(self) -> list[dict[str, Any]]:
        """The rounds written so far; a last line that was cut short is left out."""
        try:
            lines = (self.path / "metrics.jsonl").read_text().split("\n")
        except FileNotFoundError:
            return []
        try:
            return [json.loads(line) for line in lines[:-1]]
        except ValueError:
            raise UsageError(f"{self.path / 'metrics.jsonl'}: not one round a line") from None

    def spend(self, entry: Entry) -> None:
        """Add one round to the ledger; on return it is on the disk."""
        self._add_line("ledger.jsonl", entry.as_dict())

    def _add_line(self, name: str, table: dict[str, Any]) -> None:
        with (self.path / name).open("a") as file:
            file.write(json.dumps(table) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def ledger(self, *, repeatable: bool) -> Ledger:
        """The ledger; a last line that was cut short belongs to a round that released nothing, and is removed."""
        path = self.path / "ledger.jsonl"
        try:
            text = path.read_text()
        except FileNotFoundError:
            return Ledger(repeatable=repeatable)
        whole, _, cut = text.rpartition("\n")
        if cut:
            write_whole(path, f"{whole}\n".encode() if whole else b"")
        try:
            entries = [Entry.from_dict(json.loads(line)) for line in whole.split("\n") if line]
        except (ValueError, TypeError, KeyError):
            raise UsageError(f"{path}: not a ledger") from None
        return Ledger(entries, repeatable=repeatable)

    def rewind(self, rounds: int) -> list[dict[str, Any]]:
        """Forget the rounds after the checkpoint, which will be taken again, and return those before."""
        history = self.history()[:rounds]
        if len(history) < rounds:
            raise UsageError(f"{self.path}: metrics.jsonl has {len(history)} rounds, the checkpoint {rounds}")
        self.rewrite(history)
        return history

    def rewrite(self, history: list[dict[str, Any]]) -> None:
        """Put these rounds in the place of those written."""
        write_whole(self.path / "metrics.jsonl", "".join(json.dumps(r) + "\n" for r in history).encode())

    def save_checkpoint(self, state: State, about: dict[str, Any]) -> None:
        metadata = {"about": json.dumps(about)}
        tensors = {name: w.detach().cpu().contiguous() for name, w in state.flatten().items()}
        write_whole(self.path / "checkpoint.safetensors", save(tensors, metadata))

    def load_checkpoint(self) -> tuple[State, dict[str, Any]]:
        """The last saved state, and the metadata saved with it."""
        path = self.path / "checkpoint.safetensors"
        tensors, metadata = read_tensors(path)
        if "about" not in metadata:
            raise UsageError(f"{path}: not a checkpoint of a run")
        return State.unflatten(tensors), json.loads(metadata["about"])

    def save_model(self, weights: dict[str, Tensor]) -> None:
        write_whole(self.path / "model.safetensors", save({name: w.contiguous() for name, w in weights.items()}))

    def save_result(self, result: dict[str, Any]) -> None:
        write_whole(self.path / "result.json", (json.dumps(result, indent=2) + "\n").encode())

    def save_recording(self, recording: Recording) -> None:
        tensors, about = recording.flatten()
        (self.path / "records").mkdir(exist_ok=True)
        path = self.path / "records" / f"round-{recording.round:05}.safetensors"
        write_whole(path, save(tensors, {"about": json.dumps(about)}))

    def recordings(self) -> list[Path]:
        """The files of recorded rounds, in order."""
        return sorted((self.path / "records").glob("round-*.safetensors"))

    def result(self) -> dict[str, Any]:
        """The summary; where a field of it is missing, one line says which."""
        path = self.path / "result.json"
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError):
            raise UsageError(f"{path}: not a JSON file") from None
        missing = [name for name in SHOWN if not isinstance(result, dict) or name not in result]
        if missing:
            again = f"fedceo run {self.path / 'experiment.toml'}"
            raise UsageError(f"{path}: has no {missing[0]}, it is of another version of fedceo; run it again: {again}")
        found: dict[str, Any] = result
        return found


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and metadata of a safetensors file, or one line that says what is wrong with it."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path}: cut short or not a safetensors file ({error})") from None


def read_recording(path: Path) -> Recording:
    """One recorded round."""
    tensors, metadata = read_tensors(path)
    if "about" not in metadata:
        raise UsageError(f"{path}: not a recording of a round")
    return Recording.unflatten(tensors, json.loads(metadata["about"]))


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is either there with all its content or not there; a missing folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def free_folder(base: Path) -> Path:
    """`base`, or the first of base-2, base-3, ... that is not taken."""
    path, number = base, 1
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path

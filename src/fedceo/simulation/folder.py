"""A run's folder on disk; every file but those of `records/` is listed here.

experiment.toml         the experiment, every field resolved; its first line says that the folder has checksums
metrics.jsonl           one line a round
ledger.jsonl            one line a round, written before anything of the round is released and never taken back
checkpoint.safetensors  the last state, with the round and what else is needed to go on
model.safetensors       the trained global model, once finished
average.safetensors     the average of the global models, once finished, where [release] asks for one
result.json             the summary, once finished
records/                the cohort's models of a few rounds, where [record] asks for them
study.json              of a run that a private study chose: the epsilons of the whole study
asked.json              of a federation: the round whose uploads may be on their way, and count as seen if nobody notes
                        which came
nodes.json              of a federation: the public key to which each client number belongs

Folders made before there were checksums are read: no file of theirs has one, while every file of a folder whose
experiment has one must have its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from fedceo.accounting.ledger import Entry, Ledger
from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment, load_experiment, to_toml
from fedceo.mechanisms.banded import Noises
from fedceo.methods import State
from fedceo.simulation.averaging import Average
from fedceo.simulation.checkpoints import Checkpoint, read_checkpoint, save_checkpoint
from fedceo.simulation.durable import (
    IN_TOML,
    ZEROS,
    Lines,
    check_seal,
    read_json,
    sealed,
    sync_folder,
    write_json,
    write_whole,
)
from fedceo.simulation.holding import Hold
from fedceo.simulation.recording import Recording
from fedceo.simulation.spent_files import SpentFiles
from fedceo.simulation.tensor_files import read_tensors, save_tensors
from fedceo.tasks import metric_of

BEGINNING = ("checkpoint.safetensors", "metrics.jsonl", "ledger.jsonl", "experiment.toml")
"""Files that a run writes when it begins, in this order; the second and third are empty unless it continues another."""
SHOWN = (
    "method", "data", "model", "regime", "noise_multiplier", "seed", "rounds", "ended_early", "discarded_rounds",
    "seconds", "privacy", "nonfinite_updates", "clients", "record_shape", "classes", "engine", "device",
    "versions",
)  # fmt: skip
"""Fields that a summary must have to be shown; folders of earlier versions may lack some of them."""


class RunFolder:
    """Reads and writes one run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checkpoint = path / "checkpoint.safetensors"
        self._metrics, self._spent = Lines(path / "metrics.jsonl"), SpentFiles(path)
        self._hold = Hold(path)

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

    @property
    def has_checksums(self) -> bool:
        """Whether every file must have a checksum."""
        try:
            return IN_TOML.match((self.path / "experiment.toml").read_bytes()) is not None
        except OSError:
            return True

    def hold(self) -> None:
        """Lock the folder, made if it is not there, for this process, until `let_go` or the end of the process."""
        self._hold.take()

    def let_go(self) -> None:
        """Release the lock of `hold`."""
        self._hold.release()

    @contextmanager
    def held(self) -> Iterator[None]:
        """The lock of `hold`, while inside."""
        self.hold()
        try:
            yield
        finally:
            self.let_go()

    def create(
        self,
        experiment: Experiment,
        state: State,
        about: dict[str, Any],
        history: Sequence[dict[str, Any]] = (),
        spent: Sequence[Entry] = (),
        average: Average | None = None,
    ) -> None:
        """Save the beginning of a new run in a folder that is held; one that has anything else in it is refused.

        The experiment comes last: with it there is a run that can be resumed, without it there is none yet.

        Args:
            history, spent, average: of the run that this one continues.
        """
        if self.exists:
            raise UsageError(
                f"{self.path}: holds a run already; resume it (--resume, or fedceo.resume in Python) or choose another "
                "folder"
            )
        with self._writing():
            if not all(map(_may_be_overwritten, self.path.iterdir())):
                raise UsageError(f"{self.path}: not an empty folder")
            try:
                self._sweep()
                self.save_checkpoint(state, about, average)
                self._metrics.rewrite(list(history))
                self._spent.begin(spent)
                text = f"# sha256: {ZEROS}\n{to_toml(experiment)}"
                write_whole(self.path / "experiment.toml", sealed(text.encode(), IN_TOML))
            except (OSError, UsageError):
                for name in reversed(BEGINNING):
                    with suppress(OSError):
                        (self.path / name).unlink(missing_ok=True)
                raise

    def mend(self) -> None:
        """Make the folder ready to go on with, after a kill or a full disk, while it is held.

        Files that were being written are removed, and so is the last line of the ledger if it was cut short, which
        belongs to a round that released nothing. Uploads that a federation asked for, and did not note, count as seen.
        """
        if not self.has_checksums:
            raise UsageError(
                f"{self.path}: begun by an earlier version of fedceo, which wrote no checksums; go on with that "
                "version, or run the experiment again"
            )
        with self._writing():
            self._sweep()
            self._spent.mend()

    def _sweep(self) -> None:
        for left in [*self.path.glob("*.part"), *self.path.glob("records/*.part")]:
            left.unlink()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Refuse to write into a folder that is not the one that was held, and tell of a failing disk in one line."""
        try:
            self._hold.check()
            yield
        except FileNotFoundError:
            raise UsageError(
                f"{self.path}: the folder, or a file in it, was removed while the run was writing to it"
            ) from None
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written to ({error.strerror})") from None

    def experiment(self) -> Experiment:
        path = self.path / "experiment.toml"
        if not self.exists:
            raise UsageError(f"{self.path}: not a run folder, it has no experiment.toml")
        check_seal(path, IN_TOML, path.read_bytes(), expected=None)
        return load_experiment(path)

    def append(self, record: dict[str, Any]) -> None:
        """Add one round to metrics.jsonl; on return it is on the disk, where a checkpoint will count on it."""
        with self._writing():
            self._metrics.append(record)

    def history(self, rounds: int | None = None) -> list[dict[str, Any]]:
        """The rounds written so far; a last line that was cut short is left out.

        rounds: how many there must be.
        """
        history = self._metrics.read(expected=self.has_checksums)
        if rounds is not None and len(history) != rounds:
            raise UsageError(f"{self.path}: metrics.jsonl has {len(history)} rounds, result.json {rounds}")
        return history

    def spend(self, entry: Entry) -> None:
        """Add one round to the ledger; on return it is on the disk."""
        with self._writing():
            self._spent.add(entry)

    def ledger(self, *, repeatable: bool, least: int = 0) -> Ledger:
        """The ledger, as `SpentFiles.read` says; refused where it lacks a round of metrics.jsonl.

        Args:
            least: the entries that the checkpoint, or the result, says there are.
        """
        rounds = {record.get("round") for record in self.history()}  # first: a run at work writes its ledger before
        ledger = self._spent.read(repeatable=repeatable, expected=self.has_checksums)
        if len(ledger.entries) < least or not rounds <= {entry.round for entry in ledger.entries}:
            raise UsageError(
                f"{self.path}: ledger.jsonl has lost rounds that were taken: what was spent counts; restore it from a "
                "copy"
            )
        return ledger

    def ask(self, entry: Entry, spent: int) -> None:
        """Note the clients of a federation about to be asked; spent: the entries of the ledger by now."""
        with self._writing():
            self._spent.ask(entry, spent)

    def forget_asked(self) -> None:
        """Take back `ask`, once the ledger has the round."""
        with self._writing():
            self._spent.forget_asked()

    def save_nodes(self, keys: Mapping[int, str]) -> None:
        """Note the public key to which each client of a federation belongs."""
        with self._writing():
            write_json(self.path / "nodes.json", {str(client): key for client, key in keys.items()})

    def nodes(self) -> dict[int, str]:
        """Client -> its public key, as far as they are known. Whoever changes the file takes its checksum out."""
        path = self.path / "nodes.json"
        found = read_json(path, expected=None) if path.exists() else {}
        try:
            return {int(client): str(key) for client, key in found.items()}
        except (ValueError, AttributeError):
            raise UsageError(f"{path}: does not give the keys of client numbers") from None

    def rewind(self, rounds: int) -> list[dict[str, Any]]:
        """Forget the rounds after the checkpoint, which will be taken again, and return those before."""
        history = self.history()[:rounds]
        if len(history) < rounds:
            raise UsageError(f"{self.path}: metrics.jsonl has {len(history)} rounds, the checkpoint {rounds}")
        self.rewrite(history)
        return history

    def rewrite(self, history: list[dict[str, Any]]) -> None:
        """Put these rounds in the place of those written."""
        with self._writing():
            self._metrics.rewrite(history)

    def save_checkpoint(
        self, state: State, about: dict[str, Any], average: Average | None = None, noise: Noises | None = None
    ) -> None:
        """Save where the run stands.

        Args:
            average: that of the global models so far, where there is one.
            noise: that of earlier rounds, where later ones depend on it.
        """
        with self._writing():
            save_checkpoint(self._checkpoint, Checkpoint(state, about, average, noise or {}))

    def load_checkpoint(self) -> Checkpoint:
        """Where the run stood when it was last saved."""
        return read_checkpoint(self._checkpoint, expected=self.has_checksums)

    def save_model(self, weights: Mapping[str, Tensor], name: str = "model") -> None:
        """Save a trained model; name: "model" for that of the last round, or "average"."""
        with self._writing():
            save_tensors(self.path / f"{name}.safetensors", weights)

    def load_model(self, name: str = "model") -> dict[str, Tensor]:
        """A model of a finished run."""
        return read_tensors(self.path / f"{name}.safetensors", expected=self.has_checksums)[0]

    @property
    def has_average(self) -> bool:
        """Whether a finished run has an average of its global models."""
        return (self.path / "average.safetensors").exists()

    def save_result(self, result: dict[str, Any]) -> None:
        with self._writing():
            write_json(self.path / "result.json", result)

    def save_recording(self, recording: Recording) -> None:
        with self._writing():
            (self.path / "records").mkdir(exist_ok=True)
            sync_folder(self.path)
            save_tensors(self.path / "records" / f"round-{recording.round:05}.safetensors", *recording.flatten())

    def recordings(self) -> list[Path]:
        """The files of recorded rounds, in order."""
        return sorted((self.path / "records").glob("round-*.safetensors"))

    def result(self) -> dict[str, Any]:
        """The summary; where a field of it is missing, one line says which."""
        path = self.path / "result.json"
        result = read_json(path, expected=self.has_checksums)
        wanted = (*SHOWN, metric_of(result).name) if isinstance(result, dict) else SHOWN
        missing = [name for name in wanted if not isinstance(result, dict) or name not in result]
        if missing:
            again = f"fedceo run {self.path / 'experiment.toml'}"
            raise UsageError(f"{path}: has no {missing[0]}, it is of another version of fedceo; run it again: {again}")
        found: dict[str, Any] = result
        return found


def _may_be_overwritten(left: Path) -> bool:
    """Whether a run that was killed while it began may have left this behind, with nothing in it that counts."""
    if left.name.removesuffix(".part") not in BEGINNING:
        return False
    return left.suffix != ".jsonl" or left.stat().st_size == 0


def read_recording(path: Path) -> Recording:
    """One recorded round, from the folder `records` of its run."""
    folder = RunFolder(path.resolve().parent.parent)
    tensors, about = read_tensors(path, expected=folder.has_checksums if folder.exists else None)
    try:
        return Recording.unflatten(tensors, about or {})
    except (KeyError, TypeError):
        raise UsageError(f"{path}: not a recording of a round") from None

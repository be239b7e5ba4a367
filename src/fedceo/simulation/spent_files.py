"""The files of a run folder that say what was spent: ledger.jsonl, and in a federation asked.json."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedceo.accounting.ledger import Entry, Ledger
from fedceo.errors import UsageError
from fedceo.simulation.durable import Lines, read_json, write_json


class SpentFiles:
    """The ledger on disk, with the round that a federation's server has asked for and not yet noted there."""

    def __init__(self, folder: Path) -> None:
        self._lines = Lines(folder / "ledger.jsonl")
        self._asked = folder / "asked.json"

    def begin(self, spent: Iterable[Entry] = ()) -> None:
        """Begin a ledger; spent: by the run that this one continues."""
        self._lines.rewrite([entry.as_dict() for entry in spent])

    def add(self, entry: Entry) -> None:
        """Add one round; on return it is on the disk."""
        self._lines.append(entry.as_dict())

    def ask(self, entry: Entry, spent: int) -> None:
        """Note the clients about to be asked; spent: the entries of the ledger by now."""
        write_json(self._asked, {"ledger": spent, "entry": entry.as_dict()})

    def forget_asked(self) -> None:
        """Take back `ask`, once the ledger has the round."""
        self._asked.unlink(missing_ok=True)

    def read(self, *, repeatable: bool, expected: bool) -> Ledger:
        """The ledger without a last line that was cut short, whose round released nothing.

        Uploads that were asked for and not noted count as seen. expected: whether the files must have checksums.
        """
        asked = self._read_asked(expected)  # first: a server that is at work notes a round there and then in the ledger
        lines = self._lines.read(expected=expected)
        if asked is not None and asked["ledger"] == len(lines):
            lines.append(asked["entry"])
        try:
            return Ledger(map(Entry.from_dict, lines), repeatable=repeatable)
        except (ValueError, TypeError, KeyError):
            raise UsageError(f"{self._lines.path}: not a ledger") from None

    def mend(self) -> None:
        """Remove a line that was cut short, and note what was asked for."""
        spent, asked = self._lines.mend(), self._read_asked(expected=True)
        if asked is not None:
            if asked["ledger"] == spent:
                self._lines.append(asked["entry"])
            self.forget_asked()

    def _read_asked(self, expected: bool) -> dict[str, Any] | None:
        if not self._asked.exists():
            return None
        asked: dict[str, Any] = read_json(self._asked, expected=expected)
        if not isinstance(asked, dict) or not {"ledger", "entry"} <= asked.keys():
            raise UsageError(f"{self._asked}: does not say which round was asked for")
        return asked

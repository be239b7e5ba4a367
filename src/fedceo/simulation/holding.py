"""A folder that one process at a time works in."""

import os
from pathlib import Path

from fedceo.errors import UsageError
from fedceo.simulation.durable import make_folder

try:
    import fcntl
except ImportError:  # Windows, where folders are not locked
    fcntl = None  # type: ignore[assignment]


class Hold:
    """The lock on a folder, which ends with the process at the latest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder: int | None = None

    def take(self) -> None:
        """Lock the folder, made if it is not there."""
        try:
            make_folder(self.path)
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written to ({error.strerror})") from None
        if fcntl is None:
            return
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(folder)
            raise UsageError(f"{self.path}: another process is at work there") from None
        self._folder = folder

    def release(self) -> None:
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def check(self) -> None:
        """Raise FileNotFoundError where the path no longer leads to the folder that was locked."""
        if self._folder is not None and not os.path.samestat(os.fstat(self._folder), self.path.stat()):
            raise FileNotFoundError

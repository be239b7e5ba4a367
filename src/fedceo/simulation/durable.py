"""Files that survive kills, full disks and broken disks.

A file appears whole or not at all, is on the disk when the function that writes it returns, and carries a checksum by
which a reader knows it again: SHA-256 over all bytes of the file, taken with zeros in the checksum's own place, so that
no byte is left out. It is an ordinary comment, field or line of metadata, which other programs need not know of.

A file of lines grows by appending. Each line carries the beginning of SHA-256 over the digest of the line before and
its own text: a changed line is found, and so is one that is missing, new or moved. A kill can cut the last line short;
all that is left of that line is dropped.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedceo.errors import UsageError

Seal = re.Pattern[bytes]
"""Where a kind of file carries its checksum, the first group."""
IN_TOML: Seal = re.compile(rb"\A# sha256: ([0-9a-f]{64})\n")
IN_JSON: Seal = re.compile(rb'\A\{\s*"sha256": "([0-9a-f]{64})"')
IN_TENSORS: Seal = re.compile(rb'"sha256":"([0-9a-f]{64})"')
IN_LINE: Seal = re.compile(rb', "sha256": "([0-9a-f]{16})"\}')
ZEROS = "0" * 64
RESTORE = "the disk or another program has changed it; restore it from a copy"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is either there with all its content, on the disk, or as it was before."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UsageError(f"{path}: a device or a pipe, expected a name for a file")  # which would be put in its place
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: no such folder to save {path.name} in")
    beside = path.with_name(path.name + ".part")
    try:
        _write(beside, content, os.O_CREAT | os.O_TRUNC)
        beside.replace(path)
        sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing; on return they are on the disk."""
    for folder in reversed([each for each in (path, *path.parents) if not each.exists()]):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk: a file that was renamed is otherwise there under its old name."""
    if os.name == "nt":  # which opens no folders
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write(path: Path, content: bytes, how: int) -> None:
    file = os.open(path, os.O_WRONLY | getattr(os, "O_BINARY", 0) | how, 0o666)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(file, left) :]
        os.fsync(file)
    finally:
        os.close(file)


def sealed(content: bytes, seal: Seal) -> bytes:
    """The content with its checksum in the place of the zeros that stand for it."""
    found = seal.search(content)
    assert found is not None
    return content[: found.start(1)] + hashlib.sha256(content).hexdigest().encode() + content[found.end(1) :]


def check_seal(path: Path, seal: Seal, head: bytes, rest: Iterable[bytes] = (), *, expected: bool | None) -> None:
    """Refuse a file that is not as it was written.

    Args:
        head: the beginning of the file, where its checksum is.
        rest: the rest of the file in pieces.
        expected: whether the file must have a checksum; None: whoever takes it out may change the file.
    """
    found = seal.search(head)
    if found is None or expected is False:
        if expected:
            raise UsageError(f"{path}: has lost its checksum: {RESTORE}")
        if found is not None:
            raise UsageError(f"{path}: has a checksum, but experiment.toml beside it has lost its own: {RESTORE}")
        return
    digest = hashlib.sha256(head[: found.start(1)] + ZEROS.encode() + head[found.end(1) :])
    for part in rest:
        digest.update(part)
    if digest.hexdigest().encode() != found[1]:
        raise UsageError(f"{path}: does not match its checksum: {RESTORE}")


def write_json(path: Path, table: Mapping[str, Any]) -> None:
    """Write a mapping as JSON with its checksum, the first field."""
    text = json.dumps({"sha256": ZEROS, **table}, indent=2) + "\n"
    write_whole(path, sealed(text.encode(), IN_JSON))


def read_json(path: Path, *, expected: bool | None) -> Any:
    """The content of a JSON file without its checksum, or an error in one line; expected: as for `check_seal`."""
    try:
        content = path.read_bytes()
        table = json.loads(content)
    except (ValueError, OSError, RecursionError):
        raise UsageError(f"{path}: not a JSON file") from None
    check_seal(path, IN_JSON, content, expected=expected)
    if isinstance(table, dict):
        table.pop("sha256", None)
    return table


class Lines:
    """A file of JSON objects, one a line, each with a digest of itself and of the line before it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: str | None = None
        """The digest of the last line; None before the file was read or written."""

    def read(self, *, expected: bool) -> list[dict[str, Any]]:
        """The objects of all lines that are whole; expected: whether lines have digests, and the file must be there."""
        return self._read(expected)[0]

    def mend(self) -> int:
        """Take off a line that was cut short; returns how many there are."""
        tables, content = self._read(expected=True)
        if content != self.path.read_bytes():
            write_whole(self.path, content)
        return len(tables)

    def append(self, table: Mapping[str, Any]) -> None:
        """Add a line to a file that is there; on return it is on the disk."""
        if self._last is None:
            self._read(expected=True)
        line, self._last = _line(table, self._last or "")
        _write(self.path, line, os.O_APPEND)

    def rewrite(self, tables: Iterable[Mapping[str, Any]]) -> None:
        """Put these lines in the place of all, at once."""
        content, last = b"", ""
        for table in tables:
            line, last = _line(table, last)
            content += line
        write_whole(self.path, content)
        self._last = last

    def _read(self, expected: bool) -> tuple[list[dict[str, Any]], bytes]:
        """The objects, and the file as it should be: without a line that was cut short."""
        try:
            *whole, rest = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            if expected:
                raise UsageError(f"{self.path}: no such file; restore it from a copy") from None
            return [], b""
        last = IN_LINE.search(rest)
        if last is not None:  # too much of it for a line that was cut short: only its end can be missing
            whole.append(rest)
        tables, before = [], ""
        for number, line in enumerate(whole, 1):
            found = list(IN_LINE.finditer(line))
            text = line[: found[-1].start()] + b"}" if expected and found else line
            try:
                table = json.loads(text)
            except (ValueError, RecursionError):
                table = None
            if expected and (not found or found[-1].end() != len(line) or _digest(before, text) != found[-1][1]):
                raise UsageError(f"{self.path}: line {number} does not match its checksum: {RESTORE}")
            if not expected and found:
                raise UsageError(f"{self.path}: has checksums, but experiment.toml has lost its own: {RESTORE}")
            if not isinstance(table, dict):
                raise UsageError(f"{self.path}: line {number} is not an object of JSON")
            tables.append(table)
            before = found[-1][1].decode() if found else ""
        self._last = before
        return tables, b"".join(line + b"\n" for line in whole)


def _line(table: Mapping[str, Any], before: str) -> tuple[bytes, str]:
    """A line with its digest, and the digest; before: that of the line before, empty for the first."""
    text = json.dumps(table)
    digest = _digest(before, text.encode()).decode()
    return f'{text[:-1]}, "sha256": "{digest}"}}\n'.encode(), digest


def _digest(before: str, text: bytes) -> bytes:
    return hashlib.sha256(before.encode() + text).hexdigest()[:16].encode()


@contextmanager
def claimed_folder(base: Path) -> Iterator[Path]:
    """`base`, or the first of base-2, base-3, ... that is not taken, made at once so that no other process takes it.

    It goes again, with the folders made above it, where nothing was written into it.
    """
    missing = [each for each in base.parents if not each.exists()]
    path, number = base, 1
    try:
        make_folder(base.parent)
        while not _made(path):
            number += 1
            path = base.with_name(f"{base.name}-{number}")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written to ({error.strerror})") from None
    try:
        yield path
    finally:
        with suppress(OSError):
            for each in (path, *missing):
                each.rmdir()


def _made(path: Path) -> bool:
    """Whether a folder was made here, and nothing was there before."""
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True

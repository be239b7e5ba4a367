"""Downloaded files: their paths, their checksums, and the members of archives.

Archives are read in memory and never unpacked to disk, so that no member can be written outside its folder; an archive
with a member that tries is refused. So is a file that would unpack to far more than any data does (`check_growth`).
"""

import gzip
import hashlib
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from fedceo.errors import UsageError

BLOCK = 2**20
GZIP = b"\x1f\x8b"
BROKEN = (
    OSError, EOFError, ValueError, RuntimeError, OverflowError, MemoryError, zlib.error, lzma.LZMAError, struct.error,
    tarfile.TarError, zipfile.BadZipFile,
)  # fmt: skip
"""Exceptions of the standard library for a file that is cut short, changed or of another format."""
ALWAYS_TAKEN = 2**28
"""Bytes that a file may unpack to, however small it is."""
MOST_GROWTH = 200
"""Times its size that a larger file may unpack to; one that is made to fill a memory reaches a thousand times."""


def expanded(named: str, where: str) -> Path:
    """The path that was named, with ~ as the home folder; where: who named it, for errors."""
    try:
        return Path(named).expanduser()
    except RuntimeError:
        raise UsageError(f"{where}: {named}: there is no such user, whose home folder it would be") from None


def data_folder(root: Path | None, folder: str) -> Path:
    """The folder of one downloaded data set."""
    if root is None:
        raise UsageError(
            "data.root: not given, and the environment variable FEDCEO_DATA is not set; "
            f"expected the folder that holds {folder}/"
        )
    if not (root / folder).is_dir():
        raise UsageError(
            f"{root / folder}: no such folder; data.root or FEDCEO_DATA must name the folder that holds it"
        )
    return root / folder


def packed_or_not(path: Path) -> Path:
    """The path of the file itself or, where that does not exist, of the file with .gz."""
    for each in (path, path.with_name(f"{path.name}.gz")):
        if each.is_file():
            return each
    raise UsageError(f"{path}.gz: no such file, gzip or unpacked")


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error) or type(error).__name__).splitlines()[0]


def check_growth(where: str, packed: int, unpacked: int) -> None:
    """Refuse a file of `packed` bytes that unpacks to at least `unpacked` bytes, where that is more than data do."""
    if unpacked > max(ALWAYS_TAKEN, MOST_GROWTH * packed):
        raise UsageError(
            f"{where}: refused: {packed:,} bytes that unpack to {unpacked:,} or more, over {MOST_GROWTH} times as "
            "many; if they are data, store them unpacked"
        )


class Content(NamedTuple):
    """A file's bytes, unpacked where they were gzip, and the name that errors give the file."""

    where: str
    data: bytes


def read_file(path: Path) -> Content:
    """The content of a file on disk."""
    try:
        return _unpacked(Content(str(path), path.read_bytes()))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def read_archive(path: Path, wanted: Sequence[str]) -> list[Content]:
    """The contents of the wanted members of a .tar.gz, .tar or .zip file, in the order of `wanted`."""
    members = _zip_members if path.suffix == ".zip" else _tar_members
    found: dict[str, Content] = {}
    try:
        packed = path.stat().st_size
        for name, file in members(path):
            inside = PurePosixPath(name)
            if inside.is_absolute() or ".." in inside.parts or "\\" in name or ":" in name:
                raise UsageError(f"{path}: refused: its member {name!r} would lie outside its folder")
            if str(inside) in wanted and file is not None:
                where = f"{path}: {inside.name}"
                found[str(inside)] = _unpacked(Content(where, _read(file, where, packed)))
    except UsageError:
        raise
    except BROKEN as error:
        raise UsageError(f"{path}: cannot be read, truncated or corrupt: {first_line(error)}") from None
    missing = [name for name in wanted if name not in found]
    if missing:
        raise UsageError(f"{path}: truncated or another archive: it has no {missing[0]}")
    return [found[name] for name in wanted]


def _opened(path: Path) -> gzip.GzipFile | BufferedReader:
    """The file, open for reading, unpacked where it is gzip."""
    with path.open("rb") as file:
        packed = file.read(2) == GZIP
    return gzip.open(path) if packed else path.open("rb")


def _unpacked(content: Content) -> Content:
    if content.data[:2] != GZIP:  # not by suffix: some browsers unpack a download and keep its name
        return content
    try:
        with gzip.open(io.BytesIO(content.data)) as file:
            return Content(content.where, _read(file, content.where, len(content.data)))
    except UsageError:
        raise
    except BROKEN as error:
        raise UsageError(f"{content.where}: cannot be read, truncated or corrupt: {first_line(error)}") from None


def _read(file: IO[bytes] | gzip.GzipFile, where: str, packed: int) -> bytes:
    """All bytes of an unpacked stream, piece by piece: a header's word for their number would be believed at once."""
    pieces, unpacked = [], 0
    while piece := file.read(BLOCK):
        unpacked += len(piece)
        check_growth(where, packed, unpacked)
        pieces.append(piece)
    return b"".join(pieces)


def _tar_members(path: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    with _opened(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            yield member.name, archive.extractfile(member) if member.isfile() else None
        while file.read(BLOCK):  # the checksum at the end of a gzip file is compared when the end is read
            pass


def _zip_members(path: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                yield name, file


def sha256_of(path: Path) -> str:
    """SHA-256 of the file's bytes."""
    return _digest(path, "sha256", unpack=False)


def checked_md5(path: Path, published: Mapping[str, str]) -> tuple[str, str | None]:
    """A file's MD5 and the published one, if there is one.

    A checksum published under a name without .gz is that of the unpacked file.
    """
    plain = path.name.removesuffix(".gz")
    if path.name not in published and plain in published:
        return _digest(path, "md5", unpack=True), published[plain]
    return _digest(path, "md5", unpack=False), published.get(path.name)


def check_published(path: Path, published: Mapping[str, str]) -> None:
    """Refuse a file whose MD5 differs from the published one."""
    found, expected = checked_md5(path, published)
    if expected not in (None, found):
        raise UsageError(
            f"{path}: wrong checksum: MD5 {found}, published {expected}; truncated, changed or another file"
        )


def _digest(path: Path, kind: str, unpack: bool) -> str:
    digest = hashlib.new(kind, usedforsecurity=False)
    try:
        with _opened(path) if unpack else path.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except BROKEN as error:
        raise UsageError(f"{path}: cannot be read, truncated or corrupt: {first_line(error)}") from None
    return digest.hexdigest()

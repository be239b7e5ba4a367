"""Downloaded files: where they lie, whether they are the published ones, and what an archive holds.

Archives are read, never unpacked, so that nothing in them can reach another folder; one that tries is refused.
"""

import gzip
import hashlib
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
BROKEN = (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile, RuntimeError)
"""What the standard library raises for a file that is cut short, changed or of another kind."""


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
    """The file, or the same with .gz."""
    for each in (path, path.with_name(f"{path.name}.gz")):
        if each.is_file():
            return each
    raise UsageError(f"{path}.gz: no such file, gzip or unpacked")


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return (str(error) or type(error).__name__).splitlines()[0]


class Content(NamedTuple):
    """What a file holds, unpacked where it was gzip, and what to call it in an error."""

    where: str
    data: bytes


def read_file(path: Path) -> Content:
    """A file as it lies in a folder."""
    try:
        return _unpacked(Content(str(path), path.read_bytes()))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None


def read_archive(path: Path, wanted: Sequence[str]) -> list[Content]:
    """The wanted members of a .tar.gz, .tar or .zip file, in the order asked for."""
    members = _zip_members if path.suffix == ".zip" else _tar_members
    found: dict[str, Content] = {}
    try:
        for name, file in members(path):
            inside = PurePosixPath(name)
            if inside.is_absolute() or ".." in inside.parts or "\\" in name or ":" in name:
                raise UsageError(f"{path}: refused: its member {name!r} would lie outside its folder")
            if str(inside) in wanted and file is not None:
                found[str(inside)] = _unpacked(Content(f"{path}: {inside.name}", file.read()))
    except BROKEN as error:
        raise UsageError(f"{path}: cannot be read, truncated or corrupt: {first_line(error)}") from None
    missing = [name for name in wanted if name not in found]
    if missing:
        raise UsageError(f"{path}: truncated or another archive: it has no {missing[0]}")
    return [found[name] for name in wanted]


def _opened(path: Path) -> gzip.GzipFile | BufferedReader:
    """A file to read, unpacked where it is gzip."""
    with path.open("rb") as file:
        packed = file.read(2) == GZIP
    return gzip.open(path) if packed else path.open("rb")


def _unpacked(content: Content) -> Content:
    if content.data[:2] != GZIP:  # told by content: some browsers unpack a download and keep its name
        return content
    try:
        return Content(content.where, gzip.decompress(content.data))
    except BROKEN as error:
        raise UsageError(f"{content.where}: cannot be read, truncated or corrupt: {first_line(error)}") from None


def _tar_members(path: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    with _opened(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            yield member.name, archive.extractfile(member) if member.isfile() else None
        while file.read(BLOCK):  # to the end, where gzip keeps its checksum
            pass


def _zip_members(path: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                yield name, file


def sha256_of(path: Path) -> str:
    """Of the file as it lies."""
    return _digest(path, "sha256", unpack=False)


def checked_md5(path: Path, published: Mapping[str, str]) -> tuple[str, str | None]:
    """A file's MD5 and the published one, if there is one.

    A name that is published without .gz speaks of the unpacked file, however it was packed.
    """
    plain = path.name.removesuffix(".gz")
    if path.name not in published and plain in published:
        return _digest(path, "md5", unpack=True), published[plain]
    return _digest(path, "md5", unpack=False), published.get(path.name)


def check_published(path: Path, published: Mapping[str, str]) -> None:
    """Refuse a file whose published MD5 is another one."""
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

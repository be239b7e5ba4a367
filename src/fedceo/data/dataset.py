"""Published data sets: their files, how they are read, which checksums they must have."""

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedceo.data.cache import keep, read_cached
from fedceo.data.files import check_published, checked_md5, sha256_of
from fedceo.data.source import Source
from fedceo.errors import UsageError

LAYOUT = 2
"""Version of what the readers give for the same files; a higher number makes every cached data set be read anew."""


@dataclass(frozen=True)
class Download:
    """A file to fetch.

    Attributes:
        address: the URL at which its authors publish it.
        path: the path of the file below the folder of all data sets.
        md5: the published checksum of the file as it is sent.
    """

    address: str
    path: str
    md5: str | None = None


@dataclass(frozen=True)
class Checked:
    """A file with its checksum and the published one; `published` is None where nobody has published any."""

    path: Path
    size: int
    md5: str
    published: str | None

    @property
    def verdict(self) -> str:
        if self.published is None:
            return "no published checksum"
        return "as published" if self.md5 == self.published else f"wrong checksum, published {self.published}"


class DataSet(ABC):
    """A data set that an experiment file can name.

    Attributes:
        name: the name under which it is registered.
        where: the files to put by hand, and the folder for them.
        published: file name to published MD5; a name without .gz speaks of the unpacked content.
        downloads: the files that `fedceo data get` fetches; empty where there is none to fetch.
    """

    where: ClassVar[str]
    published: ClassVar[Mapping[str, str]] = {}
    downloads: ClassVar[tuple[Download, ...]] = ()

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def find(self, root: Path | None) -> list[Path]:
        """The files of this data set below the folder of all data sets; an error says which is missing."""

    @abstractmethod
    def read(self, files: Sequence[Path]) -> Source:
        """The records that those files hold."""

    def load(self, root: Path | None) -> Source:
        """The data set, from the cache if its files have been read before.

        A file must have its published checksum, if there is one. Files that are refused leave nothing in the cache.
        """
        files = self.find(root)
        if not files:
            return self.read(files)
        key = self._key(files)
        source = read_cached(key)
        if source is None:
            for path in files:
                check_published(path, self.published)
            fresh = self.read(files)
            keep(key, fresh)
            source = read_cached(key) or fresh  # memory-mapped from the first time on
        if source.note:
            warnings.warn(f"{self.name}: {source.note}", stacklevel=2)
        return source

    def missing(self, root: Path | None) -> str | None:
        """One line that names a missing file or folder; None where every file is there."""
        try:
            absent = [path for path in self.find(root) if not path.is_file()]
        except UsageError as error:
            return str(error)
        return f"{absent[0]}: no such file" if absent else None

    def check(self, root: Path | None) -> list[Checked]:
        """The data set's files, each with its checksum."""
        files = self.find(root)
        sums = [checked_md5(path, self.published) for path in files]
        return [Checked(path, path.stat().st_size, *md5) for path, md5 in zip(files, sums, strict=True)]

    def _key(self, files: Sequence[Path]) -> str:
        sources = [f"layout {LAYOUT}", *(f"{path.name} {sha256_of(path)}" for path in files)]
        return f"{self.name}-{hashlib.sha256(' '.join(sources).encode()).hexdigest()[:24]}"

"""What is known of a published data set: its files, how they are read, what their checksums must be."""

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedceo.data.cache import keep, read_cached
from fedceo.data.files import check_published, checked_md5, sha256_of
from fedceo.data.source import Source
from fedceo.errors import UsageError

LAYOUT = 1
"""Counted up when a reader gives something else for the same files, so that what is in the cache is made anew."""


@dataclass(frozen=True)
class Download:
    """A file to fetch.

    Attributes:
        address: where its authors publish it.
        path: where it goes, below the folder of all data sets.
        md5: its published checksum, of the file as it is sent.
    """

    address: str
    path: str
    md5: str | None = None


@dataclass(frozen=True)
class Checked:
    """A file beside its checksums; `published` is none where nobody has published one."""

    path: Path
    size: int
    md5: str
    published: str | None

    @property
    def verdict(self) -> str:
        if self.published is None:
            return "no published checksum"
        return "as published" if self.md5 == self.published else f"wrong checksum, published {self.published}"


@dataclass(frozen=True)
class DataSet:
    """A data set known by name.

    Attributes:
        name: as in data.name.
        description: one line for a list.
        where: what to put where by hand.
        find: from the folder of all data sets to the files of this one; an error says what is missing.
        read: from those files to what they hold.
        published: file name to published MD5; a name without .gz speaks of the unpacked content.
        downloads: what `fedceo data get` fetches; nothing where there is no file to fetch.
    """

    name: str
    description: str
    where: str
    find: Callable[[Path | None], list[Path]]
    read: Callable[[Sequence[Path]], Source]
    published: Mapping[str, str] = field(default_factory=dict)
    downloads: tuple[Download, ...] = ()

    def load(self, root: Path | None) -> Source:
        """The data set, from the cache if its files have been read before.

        Files with a published checksum must have it. Nothing is kept of files that are refused.
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
        """What is not there of it, in one line; none where all its files are."""
        try:
            absent = [path for path in self.find(root) if not path.is_file()]
        except UsageError as error:
            return str(error)
        return f"{absent[0]}: no such file" if absent else None

    def check(self, root: Path | None) -> list[Checked]:
        """Its files, each with its checksum."""
        files = self.find(root)
        sums = [checked_md5(path, self.published) for path in files]
        return [Checked(path, path.stat().st_size, *md5) for path, md5 in zip(files, sums, strict=True)]

    def _key(self, files: Sequence[Path]) -> str:
        made_from = [f"layout {LAYOUT}", *(f"{path.name} {sha256_of(path)}" for path in files)]
        return f"{self.name}-{hashlib.sha256(' '.join(made_from).encode()).hexdigest()[:24]}"

"""Sentiment140 (Go, Bhayani, Huang, 2009): tweets by user, positive or negative, from the authors' six-column csv.

A record is its first 25 tokens, split as in LEAF, each hashed into one of 10,000 buckets: a vocabulary built from the
clients' tweets would be a release that nobody accounts for.
"""

import csv
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from fedceo.data.dataset import DataSet, Download
from fedceo.data.files import data_folder, read_archive, read_file
from fedceo.data.registry import DATASETS
from fedceo.data.source import Source
from fedceo.errors import UsageError

LENGTH = 25
BUCKETS = 10_000
PADDING = 0
"""The number that fills up a short record; tokens are numbered from 1 to BUCKETS."""

WHOLE = "training.1600000.processed.noemoticon.csv"
ARCHIVE = "trainingandtestdata.zip"
TOKEN = re.compile(r"[\w']+|[.,!?;]")
LABELS = {"0": 0, "4": 1}


def tokens(text: str) -> list[int]:
    """A text's first 25 tokens as bucket numbers, filled up with PADDING."""
    words = TOKEN.findall(text)[:LENGTH]
    return [1 + zlib.crc32(word.encode()) % BUCKETS for word in words] + [PADDING] * (LENGTH - len(words))


def _parse(lines: Iterable[str]) -> tuple[list[list[int]], list[int], list[str], int]:
    """Tokens, labels and users of the rows that can be read, and how many cannot.

    A tweet is one line, so that a quotation mark that is never closed spoils its own row and no other.
    """
    x, y, users, broken = [], [], [], 0
    for line in lines:
        if not line.strip():
            continue
        try:
            polarity, _, _, _, user, text = next(csv.reader((line,)))
            y.append(LABELS[polarity])
        except (ValueError, KeyError, csv.Error):
            broken += 1
            continue
        x.append(tokens(text))
        users.append(user)
    return x, y, users, broken


@DATASETS.register(
    "sent140",
    "tweets by user, 25 hashed tokens, 2 classes; the authors' csv, gzip, plain or in its zip, in sent140/",
)
class Sentiment140(DataSet):
    """Tokens as int32, (records, 25), label 1 for polarity 4, without a test set: users hold out their own."""

    where = f"sent140/ with {WHOLE}, gzip or plain, or {ARCHIVE}, or one csv file of the same six columns"
    published: ClassVar = {ARCHIVE: "1647eb110dd2492512e27b9a70d5d1bc"}
    downloads = (
        Download(
            f"http://cs.stanford.edu/people/alecmgo/{ARCHIVE}",
            f"sent140/{ARCHIVE}",
            "1647eb110dd2492512e27b9a70d5d1bc",
        ),
    )

    def find(self, root: Path | None) -> list[Path]:
        folder = data_folder(root, "sent140")
        for name in (WHOLE, f"{WHOLE}.gz", ARCHIVE):
            if (folder / name).is_file():
                return [folder / name]
        files = sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")])
        if len(files) != 1:
            raise UsageError(
                f"{folder}: {len(files)} csv files; expected {WHOLE}, gzip or plain, {ARCHIVE}, or one of both"
            )
        return files

    def read(self, files: Sequence[Path]) -> Source:
        path = files[0]
        content = read_archive(path, [WHOLE])[0] if path.name == ARCHIVE else read_file(path)
        try:
            text = content.data.decode()
        except UnicodeDecodeError:
            text = content.data.decode("latin1")  # the authors' file is not UTF-8
        x, y, users, broken = _parse(text.split("\n"))
        if not y:
            raise UsageError(f"{content.where}: no row of six columns (polarity 0 or 4, id, date, query, user, text)")
        names, numbers = np.unique(users, return_inverse=True)
        records = torch.tensor(x, dtype=torch.int32)
        note = f"{broken:,} of {broken + len(y):,} rows of {path.name} are broken and left out" if broken else ""
        labels = torch.tensor(y)
        client, ids = torch.from_numpy(numbers.astype(np.int64)), tuple(map(str, names))
        none, unlabelled = records[:0], labels[:0]
        return Source(self.name, records, labels, none, unlabelled, 2, client=client, note=note, client_names=ids)

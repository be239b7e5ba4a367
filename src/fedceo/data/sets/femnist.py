"""FEMNIST (Caldas et al., 2018: LEAF; images from NIST Special Database 19): handwriting by writer.

It is read from LEAF's JSON files, or from one .npz file with x (records, 28, 28), y and client. Both hold black ink on
white; here ink is bright, as in MNIST, whose statistics normalise it.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedceo.data.arrays import read_npz
from fedceo.data.dataset import DataSet
from fedceo.data.files import data_folder
from fedceo.data.registry import DATASETS
from fedceo.data.source import Source, check_labels
from fedceo.errors import UsageError

CLASSES = 62
"""The digits 0 to 9, the letters A to Z and a to z."""


@DATASETS.register(
    "femnist", "handwriting by writer, 28x28, 62 classes; LEAF's JSON files or one .npz file in femnist/"
)
class FEMNIST(DataSet):
    """Images as uint8, (records, 1, 28, 28), without a test set: writers hold out records of their own."""

    where = (
        "femnist/ with LEAF's data/train/*.json and data/test/*.json (or data/all_data/*.json), or with one .npz file"
    )

    def find(self, root: Path | None) -> list[Path]:
        folder = data_folder(root, "femnist")
        for base in (folder / "data", folder):
            split = [path for part in ("train", "test") for path in sorted((base / part).glob("*.json"))]
            if files := split or sorted((base / "all_data").glob("*.json")):
                return files
        files = sorted(folder.glob("*.npz"))
        if len(files) != 1:
            raise UsageError(f"{folder}: {len(files)} .npz files and none of LEAF's; expected {self.where}")
        return files

    def read(self, files: Sequence[Path]) -> Source:
        source = read_npz(files[0]) if files[0].suffix == ".npz" else _read_leaf(files)
        where = str(files[0].parent)
        if source.client is None or source.x.dtype != torch.uint8 or source.x.shape[1:] != (1, 28, 28):
            raise UsageError(f"{where}: expected a client for each record, and images of 28x28 bytes")
        check_labels(source.y, CLASSES, where)
        x, test_x = 255 - source.x, 255 - source.test_x
        return replace(source, name=self.name, x=x, test_x=test_x, classes=CLASSES, mean=(0.1307,), std=(0.3081,))


@DATASETS.register(
    "femnist-letters",
    "the letters of femnist, upper and lower case together, 26 classes; stands in for EMNIST by writer",
)
class FEMNISTLetters(FEMNIST):
    """The letters of FEMNIST with the labels of emnist-letters, 0 to 25."""

    def read(self, files: Sequence[Path]) -> Source:
        source = super().read(files)
        assert source.client is not None
        kept = source.y >= 10
        x, y, client = source.x[kept], (source.y[kept] - 10) % 26, source.client[kept]
        return replace(source, x=x, y=y, client=client, classes=26)


def _read_leaf(files: Sequence[Path]) -> Source:
    images: list[Tensor] = []
    labels: list[int] = []
    writers: list[str] = []
    for path in files:
        for writer, records in _users(path).items():
            try:
                x = np.asarray(records["x"], np.float64).reshape(-1, 28, 28)
                y = [int(label) for label in records["y"]]
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise UsageError(f"{path}: {writer}: not LEAF's x and y: {error}") from None
            if len(x) != len(y):
                raise UsageError(f"{path}: {writer} has {len(x)} images but {len(y)} labels")
            if not ((x >= 0) & (x <= 1)).all():
                raise UsageError(f"{path}: {writer}: expected pixels from 0 to 1")
            wrong = [label for label in y if not 0 <= label < CLASSES]  # some may fit into no tensor
            if wrong:
                raise UsageError(f"{path}: {writer}: expected labels from 0 to {CLASSES - 1}, got {wrong[0]}")
            images.append(torch.from_numpy(np.rint(255 * x).astype(np.uint8)))
            labels += y
            writers += [writer] * len(y)
    if not labels:
        raise UsageError(f"{files[0].parent}: no records to train on")
    all_x, all_y = torch.cat(images).unsqueeze(1), torch.tensor(labels)
    names, numbers = np.unique(writers, return_inverse=True)
    client = torch.from_numpy(numbers.astype(np.int64))
    none_x, none_y, ids = all_x[:0], all_y[:0], tuple(map(str, names))
    return Source(str(files[0].parent), all_x, all_y, none_x, none_y, CLASSES, client=client, client_names=ids)


def _users(path: Path) -> dict[str, Any]:
    try:
        users = json.loads(path.read_bytes())["user_data"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path}: truncated, or not a JSON file of LEAF with user_data: {error}") from None
    if not isinstance(users, dict):
        raise UsageError(f"{path}: not a JSON file of LEAF: user_data is not a table of users")
    return users

"""CIFAR-10 (Krizhevsky, 2009) from the author's binary or Python version, unpacked or as downloaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedceo.data.dataset import DataSet, Download
from fedceo.data.files import Content, data_folder, read_archive, read_file
from fedceo.data.pickled import read_batch
from fedceo.data.registry import DATASETS
from fedceo.data.source import Source, check_labels
from fedceo.errors import UsageError

RECORD = 1 + 3 * 32 * 32
"""Bytes of one record: a label, then the red, green and blue planes."""

BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
NAMES = {BINARY: tuple(f"{batch}.bin" for batch in BATCHES), PYTHON: BATCHES}
ARCHIVES = {"cifar-10-binary.tar.gz": BINARY, "cifar-10-python.tar.gz": PYTHON}


def _decode(content: Content) -> tuple[Tensor, Tensor]:
    if not content.where.endswith(".bin"):
        images, labels = read_batch(content)
    elif len(content.data) == 0 or len(content.data) % RECORD:
        raise UsageError(
            f"{content.where}: truncated or corrupt: {len(content.data)} bytes, expected a multiple of {RECORD}, "
            "a label and an image"
        )
    else:
        records = np.frombuffer(content.data, np.uint8).reshape(-1, RECORD)
        images, labels = records[:, 1:], records[:, 0].astype(np.int64)
    y = torch.from_numpy(labels)
    check_labels(y, 10, content.where)
    return torch.from_numpy(images.reshape(-1, 3, 32, 32).copy()), y


@DATASETS.register(
    "cifar10",
    "60,000 colour photographs, 32x32, 10 classes; the binary or Python version, unpacked or as downloaded",
)
class CIFAR10(DataSet):
    """50,000 images to train on and 10,000 to test on, uint8 (records, 3, 32, 32)."""

    where = f"{BINARY}/, {PYTHON}/, or one of {', '.join(ARCHIVES)} as downloaded"
    published: ClassVar = {
        "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    }
    downloads = (
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
        ),
    )

    def find(self, root: Path | None) -> list[Path]:
        for folder, names in NAMES.items():
            if root is not None and (root / folder).is_dir():
                return [root / folder / name for name in names]
        for archive in ARCHIVES:
            if root is not None and (root / archive).is_file():
                return [root / archive]
        return [data_folder(root, BINARY)]  # raises the error that names the missing folder

    def read(self, files: Sequence[Path]) -> Source:
        folder = ARCHIVES.get(files[0].name)
        if folder is not None:
            contents = read_archive(files[0], [f"{folder}/{name}" for name in NAMES[folder]])
        else:
            contents = [read_file(path) for path in files]
        *batches, (test_x, test_y) = map(_decode, contents)
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        return Source(self.name, x, y, test_x, test_y, classes=10, mean=(0.5,) * 3, std=(0.5,) * 3)

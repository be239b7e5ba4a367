"""CIFAR-10 (Krizhevsky, 2009) from the author's binary version, in cifar-10-batches-bin/."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedceo.data.source import Source, check_labels, data_folder
from fedceo.errors import UsageError

RECORD = 1 + 3 * 32 * 32
"""A label byte, then the red, green and blue planes."""


def load_cifar10(root: Path | None) -> Source:
    """50,000 images to train on and 10,000 to test on, uint8 (records, 3, 32, 32)."""
    folder = data_folder(root, "cifar-10-batches-bin")
    batches = [_read_batch(folder / f"data_batch_{number}.bin") for number in range(1, 6)]
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    test_x, test_y = _read_batch(folder / "test_batch.bin")
    return Source("cifar10", x, y, test_x, test_y, classes=10, mean=(0.5,) * 3, std=(0.5,) * 3)


def _read_batch(path: Path) -> tuple[Tensor, Tensor]:
    if not path.is_file():
        raise UsageError(f"{path}: no such file; expected data_batch_1.bin to data_batch_5.bin and test_batch.bin")
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    if len(content) == 0 or len(content) % RECORD:
        raise UsageError(
            f"{path}: truncated or corrupt: {len(content)} bytes, expected a multiple of {RECORD}, a label and an image"
        )
    records = torch.from_numpy(content.reshape(-1, RECORD))
    y = records[:, 0].long()
    check_labels(y, 10, str(path))
    return records[:, 1:].reshape(-1, 3, 32, 32), y

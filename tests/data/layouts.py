"""Small data sets written in the layouts their authors publish."""

import gzip
from pathlib import Path

import numpy as np


def idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">u4").tobytes() + values.astype(np.uint8).tobytes()


def write_mnist(root: Path, train: int = 60, test: int = 20, packed: bool = True) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    (root / "mnist").mkdir()
    arrays = {}
    for part, records in (("train", train), ("t10k", test)):
        arrays[f"{part}-images-idx3-ubyte"] = rng.integers(0, 256, (records, 28, 28))
        arrays[f"{part}-labels-idx1-ubyte"] = np.arange(records) % 10
    for name, values in arrays.items():
        if packed:
            (root / "mnist" / f"{name}.gz").write_bytes(gzip.compress(idx(values)))
        else:
            (root / "mnist" / name).write_bytes(idx(values))
    return arrays


def write_cifar10(root: Path, records: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    (root / "cifar-10-batches-bin").mkdir()
    batches = {}
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        batch = rng.integers(0, 256, (records, 3073)).astype(np.uint8)
        batch[:, 0] %= 10
        batch.tofile(root / "cifar-10-batches-bin" / f"{name}.bin")
        batches[name] = batch
    return batches

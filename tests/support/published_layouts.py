"""Small data sets written in the layouts their authors publish."""

import gzip
import json
import pickle
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np


def idx(values: np.ndarray) -> bytes:
    """Unsigned bytes in the IDX format of MNIST."""
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


def write_cifar10_python(root: Path, records: int = 8, protocol: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    (root / "cifar-10-batches-py").mkdir()
    batches = {}
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        batch = rng.integers(0, 256, (records, 3073)).astype(np.uint8)
        batch[:, 0] %= 10
        content = {
            b"batch_label": name.encode(),
            b"labels": batch[:, 0].tolist(),
            b"data": np.array(batch[:, 1:], order="F" if name == "data_batch_4" else "C"),
            b"filenames": [b"x.png"] * records,
        }
        (root / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(content, protocol))
        batches[name] = batch
    return batches


def pack(folder: Path, archive: Path) -> None:
    """Replace a folder by a .tar.gz of it."""
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, folder.name)
    shutil.rmtree(folder)


LETTERS = [
    f"emnist-letters-{part}-{kind}-ubyte" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")
]


def write_emnist(root: Path, packed: str = "gz") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    (root / "emnist").mkdir()
    values = [rng.integers(0, 256, (52, 28, 28)), 1 + np.arange(52) % 26] * 2
    arrays = dict(zip(LETTERS, values, strict=True))
    contents = {name: idx(each) for name, each in arrays.items()}
    if packed == "zip":
        with zipfile.ZipFile(root / "emnist" / "gzip.zip", "w") as archive:
            for name, content in contents.items():
                archive.writestr(f"gzip/{name}.gz", gzip.compress(content))
    for name, content in contents.items() if packed != "zip" else ():
        path = root / "emnist" / (name if packed == "plain" else f"{name}.gz")
        path.write_bytes(content if packed == "plain" else gzip.compress(content))
    return arrays


def leaf(writers: dict[str, list[int]]) -> dict[str, Any]:
    """White paper with a black diagonal."""
    image = (1.0 - np.eye(28)).flatten().tolist()
    users = {writer: {"x": [image] * len(labels), "y": labels} for writer, labels in writers.items()}
    return {"users": list(writers), "num_samples": [len(labels) for labels in writers.values()], "user_data": users}


def write_leaf(root: Path, writers: dict[str, list[int]], folders: tuple[str, ...]) -> None:
    for folder in folders:
        (root / "femnist" / folder).mkdir(parents=True)
        (root / "femnist" / folder / "all_data_0.json").write_text(json.dumps(leaf(writers)))


def write_sent140(root: Path, rows: list[tuple[str, str, str]], packed: str = "gz", encoding: str = "utf-8") -> None:
    """rows: polarity, user, text."""
    folder, name = root / "sent140", "training.1600000.processed.noemoticon.csv"
    folder.mkdir()
    quoted = [(polarity, "1", "Mon Apr 06 2009", "NO_QUERY", user, text) for polarity, user, text in rows]
    content = "".join(",".join(f'"{value}"' for value in row) + "\n" for row in quoted).encode(encoding)
    if packed == "zip":
        with zipfile.ZipFile(folder / "trainingandtestdata.zip", "w") as archive:
            archive.writestr("testdata.manual.2009.06.14.csv", "")
            archive.writestr(name, content)
    elif packed == "gz":
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    else:
        (folder / name).write_bytes(content)

"""The loaders on the files their authors publish, where somebody has downloaded them."""

import gzip
import hashlib
import os
from pathlib import Path

import pytest
import torch

from fedceo.config import Data
from fedceo.data import DATASETS, build_federation

ROOT = Path(os.environ.get("FEDCEO_DATA") or Path(__file__).parents[3] / "shared" / "data")
MNIST = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
CIFAR10 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}


def needs(path: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (ROOT / path).exists(), reason=f"no {path} in FEDCEO_DATA or ../shared/data")


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@needs("mnist")
def test_mnist() -> None:
    for name, published in MNIST.items():
        packed = ROOT / "mnist" / f"{name}.gz"
        content = gzip.decompress(packed.read_bytes()) if packed.exists() else packed.with_suffix("").read_bytes()
        assert md5(content) == published
    source = DATASETS["mnist"](ROOT)
    assert source.x.shape == (60_000, 1, 28, 28) and source.test_x.shape == (10_000, 1, 28, 28)
    assert source.y[:5].tolist() == [5, 0, 4, 1, 9]
    values = source.x.double() / 255
    assert (round(values.mean().item(), 4),) == source.mean and (round(values.std().item(), 4),) == source.std


@needs("cifar-10-batches-bin")
def test_cifar10() -> None:
    for name, published in CIFAR10.items():
        assert md5((ROOT / "cifar-10-batches-bin" / name).read_bytes()) == published
    source = DATASETS["cifar10"](ROOT)
    assert source.x.shape == (50_000, 3, 32, 32) and source.test_x.shape == (10_000, 3, 32, 32)
    assert source.y.bincount().tolist() == [5000] * 10 and source.test_y.bincount().tolist() == [1000] * 10
    means = source.x.float().mean(dim=(0, 2, 3)) / 255
    torch.testing.assert_close(means, torch.tensor([0.4914, 0.4822, 0.4465]), atol=1e-4, rtol=0)  # red, green, blue


@needs("femnist/femnist_subset.npz")
def test_femnist_writers_are_natural_clients() -> None:
    path = str(ROOT / "femnist" / "femnist_subset.npz")
    federation = build_federation(Data(path=path, partition="natural", local_test=0.1), seed=0)
    assert federation.clients == 540 and federation.classes == 62 and federation.shape == (1, 28, 28)
    kept = sum(map(len, federation.train)) + len(federation.validation)
    assert kept + len(federation.test_y) == 55_950
    assert torch.equal(federation.test_y, federation.y[torch.cat(list(federation.local_test))])

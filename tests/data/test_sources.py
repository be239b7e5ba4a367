"""Every loader gives back what was written in the published layout."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedceo.config import Data
from fedceo.data import DATASETS, DESCRIPTIONS, build_federation, from_arrays
from fedceo.data.arrays import read_npz
from fedceo.data.source import hold_out
from tests.data.layouts import write_cifar10, write_mnist


def test_every_data_set_is_described() -> None:
    assert DATASETS.keys() == DESCRIPTIONS.keys()


def test_digits() -> None:
    source = DATASETS["digits"](None)
    assert source.x.shape == (1438, 1, 8, 8) and source.test_x.shape == (359, 1, 8, 8)
    assert source.x.dtype == torch.float32 and source.x.min() == 0 and source.x.max() == 1
    assert source.y.unique().tolist() == source.test_y.unique().tolist() == list(range(10))


def test_the_digits_test_set_does_not_follow_the_seed() -> None:
    first, second = (build_federation(Data(name="digits", clients=5), seed) for seed in (0, 1))
    assert torch.equal(first.test_x, second.test_x) and torch.equal(first.x, second.x)
    assert not torch.equal(first.train[0], second.train[0])


@pytest.mark.parametrize("packed", [True, False])
def test_mnist(tmp_path: Path, packed: bool) -> None:
    arrays = write_mnist(tmp_path, packed=packed)
    source = DATASETS["mnist"](tmp_path)
    assert source.x.shape == (60, 1, 28, 28) and source.x.dtype == torch.uint8 and source.y.dtype == torch.int64
    np.testing.assert_array_equal(source.x[:, 0], arrays["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(source.y, arrays["train-labels-idx1-ubyte"])
    np.testing.assert_array_equal(source.test_x[:, 0], arrays["t10k-images-idx3-ubyte"])
    np.testing.assert_array_equal(source.test_y, arrays["t10k-labels-idx1-ubyte"])
    assert (source.mean, source.std, source.classes) == ((0.1307,), (0.3081,), 10)


def test_mnist_unpacked_under_its_packed_name(tmp_path: Path) -> None:
    write_mnist(tmp_path, packed=False)
    for path in list((tmp_path / "mnist").iterdir()):
        path.rename(path.with_name(f"{path.name}.gz"))
    assert len(DATASETS["mnist"](tmp_path).y) == 60


def test_cifar10(tmp_path: Path) -> None:
    batches = write_cifar10(tmp_path)
    source = DATASETS["cifar10"](tmp_path)
    assert source.x.shape == (40, 3, 32, 32) and source.x.dtype == torch.uint8
    third = batches["data_batch_3"]
    np.testing.assert_array_equal(source.y[16:24], third[:, 0])
    np.testing.assert_array_equal(source.x[16:24, 1].flatten(1), third[:, 1 + 1024 : 1 + 2048])  # the green plane
    np.testing.assert_array_equal(source.test_x.flatten(1), batches["test_batch"][:, 1:])
    assert (source.mean, source.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_the_folder_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path)
    monkeypatch.setenv("FEDCEO_DATA", str(tmp_path))
    assert build_federation(Data(name="mnist", clients=3), 0).clients == 3
    monkeypatch.setenv("FEDCEO_DATA", str(tmp_path / "elsewhere"))
    assert build_federation(Data(name="mnist", clients=3, root=str(tmp_path)), 0).clients == 3


def test_arrays_without_a_test_set_hold_out_a_fixed_fifth() -> None:
    x, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 4
    source = from_arrays(x, y)
    train, test = hold_out(20)
    assert len(test) == 4 and sorted([*train, *test]) == list(range(20))
    assert source.x.dtype == torch.float32
    np.testing.assert_array_equal(source.x, x[train])
    np.testing.assert_array_equal(source.test_x, x[test])
    np.testing.assert_array_equal(source.test_y, y[test])
    assert (source.mean, source.std, source.classes, source.client) == ((0.0,), (1.0,), 4, None)


def test_arrays_with_client_ids_and_a_test_set() -> None:
    source = from_arrays(
        torch.ones(4, 3), [0, 1, 0, 1], client=["b", "a", "b", "c"], test_x=torch.zeros(2, 3), test_y=[0, 1]
    )
    assert len(source.test_y) == 2 and source.client is not None
    assert source.client.tolist() == [1, 0, 1, 2]


def test_grey_images_get_a_channel_and_stay_bytes() -> None:
    images = np.random.default_rng(0).integers(0, 256, (10, 5, 4)).astype(np.uint8)
    source = from_arrays(images, np.zeros(10, int), client=np.arange(10))
    assert source.x.dtype == torch.uint8 and source.x.shape == (10, 1, 5, 4) and source.test_x.shape == (0, 1, 5, 4)


@pytest.mark.parametrize("dtype", [">f8", "f2", "i4", "?", ">f4"])
def test_other_numbers_become_float32(dtype: str) -> None:
    x = np.eye(6, 3).astype(dtype)[::-1]
    x.flags.writeable = False
    source = from_arrays(x, np.array([0, 1] * 3, ">u2"), client=np.arange(6))
    assert source.x.dtype == torch.float32 and source.y.dtype == torch.int64
    np.testing.assert_array_equal(source.x, x.astype(np.float32))


def test_the_users_array_is_copied() -> None:
    x = np.zeros((4, 2), np.float32)
    source = from_arrays(x, [0, 1, 0, 1])
    x[:] = np.nan
    assert not source.x.isnan().any()


def test_npz(tmp_path: Path) -> None:
    x, y, client = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 3, np.arange(30) // 6
    np.savez_compressed(tmp_path / "my.npz", x=x, y=y, client=client, note=np.array("ignored"))
    source = read_npz(tmp_path / "my.npz")
    assert source.name == "my.npz" and source.client is not None
    np.testing.assert_array_equal(source.x, x.astype(np.float32))
    federation = build_federation(Data(path=str(tmp_path / "my.npz"), partition="natural"), 0)
    assert federation.clients == 5 and federation.name == "my.npz"

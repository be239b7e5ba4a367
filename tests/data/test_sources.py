"""Every loader gives back what was written in the published layout."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from fedceo.data import DATASETS, build_federation, from_arrays, load_source
from fedceo.data.arrays import read_npz
from fedceo.data.sets.sent140 import tokens
from fedceo.data.source import hold_out
from fedceo.experiment.sections import Data
from tests.support.published_layouts import (
    LETTERS,
    pack,
    write_cifar10,
    write_cifar10_python,
    write_emnist,
    write_leaf,
    write_mnist,
    write_sent140,
)

pytestmark = pytest.mark.usefixtures("unpublished")


def test_every_data_set_is_described_and_listed_in_the_order_of_the_alphabet() -> None:
    assert list(DATASETS) == list(DATASETS.descriptions) == sorted(DATASETS)
    assert {"cifar10", "digits", "fashion-mnist", "femnist-letters"} <= DATASETS.keys()
    assert all(DATASETS.descriptions.values())


def test_digits() -> None:
    source = load_source("digits", None)
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
    source = load_source("mnist", tmp_path)
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
    assert len(load_source("mnist", tmp_path).y) == 60


def test_cifar10(tmp_path: Path) -> None:
    batches = write_cifar10(tmp_path)
    source = load_source("cifar10", tmp_path)
    assert source.x.shape == (40, 3, 32, 32) and source.x.dtype == torch.uint8
    third = batches["data_batch_3"]
    np.testing.assert_array_equal(source.y[16:24], third[:, 0])
    np.testing.assert_array_equal(source.x[16:24, 1].flatten(1), third[:, 1 + 1024 : 1 + 2048])  # the green plane
    np.testing.assert_array_equal(source.test_x.flatten(1), batches["test_batch"][:, 1:])
    assert (source.mean, source.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar10_python_is_the_same_as_binary(tmp_path: Path, packed: bool, protocol: int) -> None:
    batches = write_cifar10_python(tmp_path, protocol=protocol)
    if packed:
        pack(tmp_path / "cifar-10-batches-py", tmp_path / "cifar-10-python.tar.gz")
    source = load_source("cifar10", tmp_path)
    np.testing.assert_array_equal(source.x[16:24].flatten(1), batches["data_batch_3"][:, 1:])
    np.testing.assert_array_equal(source.x[24:32].flatten(1), batches["data_batch_4"][:, 1:])  # column by column
    np.testing.assert_array_equal(source.y[16:24], batches["data_batch_3"][:, 0])
    np.testing.assert_array_equal(source.test_y, batches["test_batch"][:, 0])


def test_cifar10_from_the_archive_as_downloaded(tmp_path: Path) -> None:
    batches = write_cifar10(tmp_path)
    pack(tmp_path / "cifar-10-batches-bin", tmp_path / "cifar-10-binary.tar.gz")
    source = load_source("cifar10", tmp_path)
    np.testing.assert_array_equal(source.test_x.flatten(1), batches["test_batch"][:, 1:])


@pytest.mark.parametrize("packed", ["gz", "zip", "plain"])
def test_emnist_letters_are_upright_and_counted_from_0(tmp_path: Path, packed: str) -> None:
    arrays = write_emnist(tmp_path, packed)
    source = load_source("emnist-letters", tmp_path)
    images, labels = (arrays[name] for name in LETTERS[:2])
    assert source.x.shape == (52, 1, 28, 28) and source.classes == 26
    np.testing.assert_array_equal(source.x[:, 0], images.transpose(0, 2, 1))
    np.testing.assert_array_equal(source.y, labels - 1)
    assert source.y.min() == 0 and source.y.max() == 25


def test_fashion_mnist(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "mnist").rename(tmp_path / "fashion-mnist")
    source = load_source("fashion-mnist", tmp_path)
    assert source.name == "fashion-mnist" and source.x.shape == (60, 1, 28, 28)


def test_fashion_mnist_from_debians_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path)
    monkeypatch.setattr("fedceo.data.sets.fashion_mnist.DEBIAN", tmp_path / "mnist")
    assert len(load_source("fashion-mnist", None).y) == 60


@pytest.mark.parametrize("folders", [("data/train", "data/test"), ("train", "test"), ("data/all_data",)])
def test_femnist_from_leaf(tmp_path: Path, folders: tuple[str, ...]) -> None:
    write_leaf(tmp_path, {"b": [0, 10, 61], "a": [36, 9]}, folders)
    source = load_source("femnist", tmp_path)
    times = len(folders)
    assert source.classes == 62 and len(source.test_y) == 0 and source.client is not None
    assert sorted(source.y.tolist()) == sorted([0, 10, 61, 36, 9] * times)
    assert source.client.bincount().tolist() == [2 * times, 3 * times]
    assert source.x.dtype == torch.uint8 and source.x[0, 0, 0, 1] == 0, "paper is dark, ink is bright"
    assert source.x[0, 0, 3, 3] == 255
    letters = load_source("femnist-letters", tmp_path)
    assert sorted(set(letters.y.tolist())) == [0, 25] and letters.classes == 26, "A and a are one class"
    assert letters.client is not None and letters.client.bincount().tolist() == [times, 2 * times]


def test_femnist_from_npz(tmp_path: Path) -> None:
    (tmp_path / "femnist").mkdir()
    x = np.random.default_rng(0).integers(0, 256, (6, 28, 28)).astype(np.uint8)
    np.savez(tmp_path / "femnist" / "part.npz", x=x, y=np.arange(6, dtype=np.uint8), client=[0, 0, 1, 1, 1, 2])
    source = load_source("femnist", tmp_path)
    np.testing.assert_array_equal(source.x[:, 0], 255 - x)
    settings = Data(name="femnist", partition="natural", min_records=2, root=str(tmp_path))
    assert build_federation(settings, 0).clients == 2


def test_sent140(tmp_path: Path) -> None:
    rows = [("4", "u1", "I love it, so much!"), ("0", "u2", "no"), ("4", "u1", " ".join(map(str, range(40))))]
    write_sent140(tmp_path, rows)
    source = load_source("sent140", tmp_path)
    assert source.x.shape == (3, 25) and source.x.dtype == torch.int32 and source.y.tolist() == [1, 0, 1]
    assert (source.x > 0).sum(1).tolist() == [7, 1, 25], "I love it , so much !"
    assert source.client is not None and source.client.tolist() == [0, 1, 0] and source.note == ""
    assert int(source.x.max()) <= 10_000 and tokens("it ,")[:2] == source.x[0, 2:4].tolist()


@pytest.mark.parametrize("packed", ["gz", "zip", "plain"])
def test_sent140_as_its_authors_pack_it(tmp_path: Path, packed: str) -> None:
    write_sent140(tmp_path, [("4", "u1", "caf\xe9"), ("0", "u2", "th\xe9!")], packed, encoding="latin1")
    assert load_source("sent140", tmp_path).x[0].tolist() == tokens("café")


def test_broken_rows_are_counted_and_reported(tmp_path: Path) -> None:
    write_sent140(tmp_path, [("4", "u1", "good"), ("2", "u1", "neither"), ("0", "u2", "bad")])
    path = next((tmp_path / "sent140").iterdir())
    content = gzip.decompress(path.read_bytes())
    path.write_bytes(
        gzip.compress(content + b'"4","1","date"\n"4","9","d","q","u3","never closed\n"0","1","d","q","u","x"\n')
    )
    for _ in range(2):  # read, and from the cache
        with pytest.warns(UserWarning, match=r"sent140: 2 of 6 rows of .* are broken and left out"):
            source = load_source("sent140", tmp_path)
        assert source.y.tolist() == [1, 0, 1, 0]


def test_tokens_reach_the_model_as_they_are(tmp_path: Path) -> None:
    write_sent140(tmp_path, [("4", f"u{n}", f"word{n} !") for n in range(40)])
    settings = Data(name="sent140", root=str(tmp_path), partition="pooled", clients=3)
    federation = build_federation(settings, 0)
    inputs = federation.inputs(federation.x[:4])
    assert inputs.dtype == torch.int64 and torch.equal(inputs, federation.x[:4].long())


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

"""Every mistake is one line that names the field or file and what was expected."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedceo.data import Source, build_federation, federate, from_arrays
from fedceo.errors import UsageError
from fedceo.experiment.sections import Data
from tests.support.published_layouts import idx, write_cifar10, write_mnist

pytestmark = pytest.mark.usefixtures("unpublished")

X, Y = np.ones((10, 2)), np.arange(10) % 3


def refusal(function: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as caught:
        function()
    message = str(caught.value)
    assert "\n" not in message
    return message


def build(**given: Any) -> str:
    return refusal(lambda: build_federation(Data.model_validate({"clients": 3} | given), 0))


def with_value(value: float) -> np.ndarray:
    x = X.copy()
    x[3, 1] = value
    return x


@pytest.mark.parametrize(
    "name, words",
    [
        ("mnsit", "did you mean mnist? known are cifar10, digits, emnist-letters, "),
        ("CIFAR-10", "did you mean cifar10?"),
        ("imagenet-21k", "unknown data set 'imagenet-21k'; known are"),
    ],
)
def test_unknown_data_set(name: str, words: str) -> None:
    message = build(name=name)
    assert message.startswith("data.name: ") and words in message


@pytest.mark.parametrize("name, folder", [("mnist", "mnist"), ("cifar10", "cifar-10-batches-bin")])
def test_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str) -> None:
    monkeypatch.delenv("FEDCEO_DATA", raising=False)
    message = build(name=name)
    assert "data.root" in message and "FEDCEO_DATA" in message and f"{folder}/" in message
    assert str(tmp_path / folder) in build(name=name, root=str(tmp_path))
    monkeypatch.setenv("FEDCEO_DATA", str(tmp_path / "nowhere"))
    assert str(tmp_path / "nowhere" / folder) in build(name=name)


IMAGES, LABELS = "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
PIXELS = np.zeros((20, 28, 28))


@pytest.mark.parametrize(
    "name, content, words",
    [
        (IMAGES, None, "no such file"),
        (LABELS, None, "no such file"),
        (IMAGES, gzip.compress(idx(PIXELS), mtime=0)[:-30], "truncated or corrupt"),
        (IMAGES, gzip.compress(idx(PIXELS), mtime=0)[:9], "truncated or corrupt"),
        (IMAGES, b"\x1f\x8b" + bytes(100), "truncated or corrupt"),
        (IMAGES, gzip.compress(idx(PIXELS), mtime=0)[:-8] + bytes(8), "truncated or corrupt"),
        (IMAGES, b"", "not an idx file"),
        (IMAGES, b"<html>404 not found</html>", "not an idx file"),
        (IMAGES, idx(PIXELS)[:9], "not an idx file"),
        (IMAGES, idx(np.zeros(20)), "not an idx file of bytes with 3 axes"),
        (IMAGES, idx(PIXELS)[:-1], "header says 20 x 28 x 28 bytes of values, it holds 15679"),
        (IMAGES, idx(PIXELS) + b"\0", "it holds 15681"),
        (IMAGES, bytes((0, 0, 8, 3)) + struct.pack(">3I", *[2**32 - 1] * 3) + bytes(64), "it holds 64"),
        (IMAGES, idx(PIXELS[:19]), "holds 19 images but train-labels-idx1-ubyte.gz holds 60 labels"),
        (LABELS, idx(np.arange(20) % 11), "labels from 0 to 9, got 10 at record 10"),
    ],
)
def test_bad_mnist_files(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    write_mnist(tmp_path)
    path = tmp_path / "mnist" / f"{name}.gz"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    message = build(name="mnist", root=str(tmp_path))
    assert message.startswith(str(path)) and words in message


def test_mnist_images_of_two_shapes_and_none(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(idx(np.zeros((20, 14, 14))))
    assert "uint8 (1, 28, 28) but those of test_x are uint8 (1, 14, 14)" in build(name="mnist", root=str(tmp_path))
    for part in ("images-idx3", "labels-idx1"):
        empty = np.zeros((0, 28, 28) if part == "images-idx3" else 0)
        (tmp_path / "mnist" / f"train-{part}-ubyte.gz").write_bytes(idx(empty))
    path.write_bytes(idx(PIXELS))
    assert build(name="mnist", root=str(tmp_path)) == "mnist: no records to train on"


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "no such file"),
        (b"", "0 bytes, expected a multiple of 3073"),
        (bytes(3072), "3072 bytes, expected a multiple of 3073"),
        (bytes(3073) + bytes((10,)) + bytes(3072), "labels from 0 to 9, got 10 at record 1"),
    ],
)
@pytest.mark.parametrize("name", ["data_batch_4.bin", "test_batch.bin"])
def test_bad_cifar10_files(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    write_cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-bin" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    message = build(name="cifar10", root=str(tmp_path))
    assert message.startswith(str(path)) and words in message


@pytest.mark.parametrize(
    "arrays, words",
    [
        ({"x": with_value(np.nan)}, "x must be finite, got NaN or Inf"),
        ({"x": with_value(-np.inf)}, "x must be finite"),
        ({"x": with_value(1e300)}, "x must be finite"),  # float32 cannot hold it
        ({"test_x": with_value(np.nan), "test_y": Y}, "test_x must be finite"),
        ({"x": X[:9]}, "x has 9 records but y has 10"),
        ({"x": np.ones(10)}, "x: expected numbers, (records, ...), got float64 (10,)"),
        ({"x": np.ones((10, 0))}, "x: expected numbers"),
        ({"x": X.astype(str)}, "x: expected numbers"),
        ({"x": X * 1j}, "x: expected numbers"),
        ({"x": [[1.0, 2.0], [3.0]]}, "x: not an array"),
        ({"x": X[:0], "y": Y[:0]}, "no records"),
        ({"x": X[:0], "y": Y[:0], "client": Y[:0]}, "no records"),
        ({"y": Y - 1}, "y: expected labels counted from 0, got -1 to 1"),
        ({"y": Y.astype(complex)}, "y: expected integers or floats, (records,), got complex128"),
        ({"y": Y[:, None, None]}, "y: expected integers or floats, (records,), got int64 (10, 1, 1)"),
        ({"y": np.where(Y == 1, np.nan, 0.5)}, "y: expected finite numbers, got nan at record"),
        ({"test_x": X, "test_y": Y.astype(float)}, "y is int64 () a record but test_y is float32 (1,)"),
        ({"y": np.array(list("abcdefghij"))}, "y: expected integers"),
        ({"y": Y + 10}, "y has label 12 but only 10 records"),
        ({"y": np.full(10, 2**64 - 1, np.uint64)}, "y: expected labels counted from 0"),
        ({"client": Y[:9]}, "y has 10 records but client has 9"),
        ({"client": Y.astype(float)}, "client: expected integers or strings"),
        ({"test_x": X}, "test_x and test_y must be given together"),
        ({"test_x": X, "test_y": Y[:9]}, "test_x has 10 records but test_y has 9"),
        ({"test_x": X, "test_y": Y + 1}, "test_y: expected labels from 0 to 2, got 3 at record 2"),
        ({"test_x": X[:, :1], "test_y": Y}, "x are float32 (2,) but those of test_x are float32 (1,)"),
        ({"test_x": X.astype(np.uint8), "test_y": Y}, "x are float32 (2,) but those of test_x are uint8 (2,)"),
    ],
)
def test_bad_arrays(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    given = {"x": X, "y": Y} | arrays
    message = refusal(lambda: from_arrays(**given, name="mine"))
    assert message.startswith("mine: ") and words in message
    if all(isinstance(each, np.ndarray) for each in given.values()):
        np.savez(tmp_path / "mine.npz", **given)
        assert build(path=str(tmp_path / "mine.npz")) == message.replace("mine: ", "mine.npz: ")


@pytest.mark.parametrize("x, y", [(torch.float64, torch.int64), (torch.float32, torch.float32)])
def test_a_source_made_by_hand(x: torch.dtype, y: torch.dtype) -> None:
    values, labels = torch.ones(4, 2, dtype=x), torch.zeros(4, dtype=y)
    message = refusal(lambda: Source("hand", values, labels, values, labels, classes=1))
    assert message == f"hand: x must be uint8, float32 or int32 and y int64, got {x} and {y}"


def good_npz(path: Path) -> bytes:
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(50, 9)), y=np.arange(50) % 3)
    return path.read_bytes()


def test_bad_npz_files(tmp_path: Path) -> None:
    path = tmp_path / "my.npz"
    assert build(path=str(path)) == f"data.path: {path}: no such file"
    assert str(tmp_path) in build(path=str(tmp_path))
    np.savez(path, x=X)
    assert build(path=str(path)) == f"{path}: no array named y; it holds x"
    np.savez(path)
    assert "no array named x or y; it holds nothing" in build(path=str(path))
    np.savez(path, x=X, y=np.array([1, "a", None] + [0] * 7, dtype=object), allow_pickle=True)
    assert "not a .npz file of plain arrays" in build(path=str(path))
    with path.open("wb") as file:
        np.save(file, X)
    assert "not a .npz file of plain arrays: it holds one array, expected x and y" in build(path=str(path))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04pickle", b"x,y\n1,2\n", b"\x93NUMPY\x01\x00"])
def test_not_npz_at_all(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "my.npz"
    path.write_bytes(content)
    assert build(path=str(path)).startswith(f"{path}: not a .npz file of plain arrays")


def test_npz_cut_or_changed_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "my.npz"
    whole = good_npz(path)
    for cut in range(0, len(whole), 97):
        path.write_bytes(whole[:cut])
        assert str(path) in build(path=str(path))
    for index in range(150, len(whole) // 2, 97):  # inside the compressed values, which carry a checksum
        path.write_bytes(whole[:index] + bytes((whole[index] ^ 0xFF,)) + whole[index + 1 :])
        assert str(path) in build(path=str(path))


@pytest.mark.parametrize(
    "given, words",
    [
        ({"clients": 9}, "data.clients: 9 clients cannot share 8 records"),
        ({"clients": 9, "partition": "dirichlet"}, "data.clients: 9 clients cannot share 8 records"),
        ({"clients": 5, "partition": "shards"}, "needs 2 shards for each of 5 clients, but 8 records"),
        ({"clients": None}, 'data.clients: needed for partition "iid"'),
        ({"partition": "natural"}, 'data.partition: "natural" needs data with client ids'),
        ({"clients": 2, "partition": "dirichlet", "alpha": 1.7e308}, "data.alpha: 1.7e+308"),
        ({"clients": 2, "partition": "dirichlet-equal", "alpha": 1.7e308}, "data.alpha: 1.7e+308"),
    ],
)
def test_bad_partitions(given: dict[str, Any], words: str) -> None:
    settings = Data.model_validate({"name": "digits"} | given)
    assert words in refusal(lambda: federate(from_arrays(X, Y), settings, 0))


def test_natural_clients_miscounted() -> None:
    source = from_arrays(X, Y, client=np.arange(10) // 2)
    message = refusal(lambda: federate(source, Data(name="digits", partition="natural", clients=7), 0))
    assert message == "data.clients: 7 given, but the data has 5 natural clients; leave it out"
    assert federate(source, Data(name="digits", partition="natural", clients=5), 0).clients == 5


def test_natural_clients_with_nothing_to_hold_out() -> None:
    source = from_arrays(X, Y, client=np.arange(10))
    message = refusal(lambda: federate(source, Data(name="digits", partition="natural"), 0))
    assert message == "arrays: no test set, and its clients have too few records to hold any out"

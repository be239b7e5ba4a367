"""A file that differs from the published one is refused in one line, and nothing of it is cached."""

import gzip
import io
import json
import os
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedceo.data import known, load_source
from fedceo.errors import UsageError
from tests.support.published_layouts import (
    LETTERS,
    idx,
    leaf,
    pack,
    write_cifar10,
    write_cifar10_python,
    write_emnist,
    write_leaf,
    write_mnist,
    write_sent140,
)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDCEO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def refused(name: str, root: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_source(name, root)
    assert "\n" not in str(caught.value)
    assert not (root / "cache").exists(), "nothing is cached"
    return str(caught.value)


@pytest.mark.parametrize(
    "name, write, path",
    [
        ("cifar10", write_cifar10, "cifar-10-batches-bin/data_batch_1.bin"),
        ("cifar10", write_cifar10_python, "cifar-10-batches-py/data_batch_1"),
        ("mnist", write_mnist, "mnist/train-images-idx3-ubyte.gz"),
        ("emnist-letters", lambda root: write_emnist(root, "zip"), "emnist/gzip.zip"),
        ("sent140", lambda root: write_sent140(root, [("4", "u", "x")], "zip"), "sent140/trainingandtestdata.zip"),
    ],
)
def test_wrong_checksum(tmp_path: Path, name: str, write: Any, path: str) -> None:
    write(tmp_path)
    message = refused(name, tmp_path)
    assert message.startswith(f"{tmp_path / path}: wrong checksum: MD5 ") and "published" in message
    assert known(name).check(tmp_path)[0].verdict.startswith("wrong checksum, published")


@pytest.mark.usefixtures("unpublished")
@pytest.mark.parametrize("write, name", [(write_cifar10, "binary"), (write_cifar10_python, "python")])
def test_truncated_archives(tmp_path: Path, write: Any, name: str) -> None:
    write(tmp_path)
    archive = tmp_path / f"cifar-10-{name}.tar.gz"
    pack(tmp_path / f"cifar-10-batches-{name[:3].replace('pyt', 'py')}", archive)
    whole = archive.read_bytes()
    for kept in (0, 5, 200, len(whole) // 2, len(whole) - 4):
        archive.write_bytes(whole[:kept])
        assert "truncated" in refused("cifar10", tmp_path)
    archive.write_bytes(gzip.compress(gzip.decompress(whole)[:60_000]))
    assert "truncated" in refused("cifar10", tmp_path)


@pytest.mark.usefixtures("unpublished")
@pytest.mark.parametrize("bad", ["../evil", "/etc/evil", "cifar-10-batches-bin/../../evil", "..\\evil", "C:evil"])
def test_a_member_outside_its_folder(tmp_path: Path, bad: str) -> None:
    write_cifar10(tmp_path)
    folder, archive = tmp_path / "cifar-10-batches-bin", tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, folder.name)
        file.addfile(tarfile.TarInfo(bad), io.BytesIO())
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert f"refused: its member {bad!r} would lie outside its folder" in refused("cifar10", tmp_path)


@pytest.mark.usefixtures("unpublished")
def test_bad_zip_files(tmp_path: Path) -> None:
    write_emnist(tmp_path, "zip")
    path = tmp_path / "emnist" / "gzip.zip"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "truncated or corrupt" in refused("emnist-letters", tmp_path)
    path.write_bytes(whole[:500] + bytes((whole[500] ^ 0xFF,)) + whole[501:])
    assert "truncated or corrupt" in refused("emnist-letters", tmp_path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../evil", "")
    assert "outside its folder" in refused("emnist-letters", tmp_path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("gzip/readme", "")
    assert "it has no gzip/emnist-letters-train-images" in refused("emnist-letters", tmp_path)


@pytest.mark.usefixtures("unpublished")
@pytest.mark.parametrize(
    "name, content, words",
    [
        (LETTERS[0], idx(np.zeros((52, 28, 28)))[:-1], "header says 52 x 28 x 28 bytes of values, it holds 40767"),
        (LETTERS[0], idx(np.zeros((51, 28, 28))), "holds 51 images but"),
        (LETTERS[1], idx(np.arange(52) % 26), "expected labels from 1 to 26, got 0 at record 0"),
        (LETTERS[3], idx(np.full(52, 27)), "expected labels from 1 to 26, got 27 at record 0"),
    ],
)
def test_bad_emnist_files(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    write_emnist(tmp_path)
    (tmp_path / "emnist" / f"{name}.gz").write_bytes(gzip.compress(content))
    assert words in refused("emnist-letters", tmp_path)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch evil",)


def array(shape: tuple[int, ...] = (8, 3072), kind: type = np.uint8) -> np.ndarray:
    return np.zeros(shape, kind)


@pytest.mark.usefixtures("unpublished")
@pytest.mark.parametrize(
    "batch, words",
    [
        ({b"data": array(), b"labels": [0] * 8, b"x": Evil()}, "refused: it asks for "),
        (Evil(), "refused: it asks for "),
        ({b"data": np.array([Evil()], object), b"labels": [0]}, "refused: "),
        ({b"data": array((8, 3071)), b"labels": [0] * 8}, "expected bytes, (records, 3072)"),
        ({b"data": array(kind=np.float32), b"labels": [0] * 8}, "expected bytes, (records, 3072)"),
        ({b"data": array(), b"labels": [0] * 7}, "expected 8 labels, one for each image, got 7"),
        ({b"data": array(), b"labels": ["0"] * 8}, "expected 8 labels"),
        ({b"data": array(), b"labels": [10] * 8}, "labels from 0 to 9, got 10 at record 0"),
        ({b"labels": [0] * 8}, "expected an array data and a list labels"),
        ([1, 2], "expected an array data and a list labels"),
    ],
)
def test_pickles_are_not_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: Any, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_cifar10_python(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    path.write_bytes(pickle.dumps(batch, 2))
    message = refused("cifar10", tmp_path)
    assert message.startswith(str(path)) and words in message
    assert not (tmp_path / "evil").exists()


@pytest.mark.usefixtures("unpublished")
def test_a_pickle_that_asks_for_what_is_stored_elsewhere(tmp_path: Path) -> None:
    write_cifar10_python(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").write_bytes(b"Pelsewhere\n.")
    assert "refused: A load persistent id instruction was encountered" in refused("cifar10", tmp_path)


@pytest.mark.usefixtures("unpublished")
def test_pickles_cut_anywhere(tmp_path: Path) -> None:
    write_cifar10_python(tmp_path, records=1)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    whole = path.read_bytes()
    for kept in (*range(0, 150, 7), len(whole) - 1):
        path.write_bytes(whole[:kept])
        assert str(path) in refused("cifar10", tmp_path)


def changed(**user: Any) -> str:
    table = leaf({"a": [1, 2]})
    table["user_data"]["a"] |= user
    return json.dumps(table)


@pytest.mark.parametrize(
    "content, words",
    [
        ("", "truncated, or not a JSON file of LEAF"),
        (changed()[:400], "truncated, or not a JSON file of LEAF"),
        ("[1, 2]", "truncated, or not a JSON file of LEAF"),
        ('{"user_data": [1]}', "user_data is not a table of users"),
        ('{"user_data": {}}', "no records to train on"),
        ('{"user_data": {"a": {"x": []}}}', "a: not LEAF's x and y"),
        (changed(x=[[0.0] * 783] * 2), "a: not LEAF's x and y"),
        (changed(x=[[0.0] * 784]), "a has 1 images but 2 labels"),
        (changed(x=[[2.0] * 784] * 2), "expected pixels from 0 to 1"),
        (changed(x=[[float("nan")] * 784] * 2), "expected pixels from 0 to 1"),
        (changed(y=[1, 62]), "expected labels from 0 to 61, got 62"),
        (changed(y=[1, 10**30]), "expected labels from 0 to 61, got 1000"),
        (changed(y=[1, float("inf")]), "a: not LEAF's x and y"),
        (changed(x=[[10**400] * 784] * 2), "a: not LEAF's x and y"),
        ("[" * 100_000, "truncated, or not a JSON file of LEAF"),
    ],
)
def test_bad_leaf_files(tmp_path: Path, content: str, words: str) -> None:
    write_leaf(tmp_path, {"a": [1, 2]}, ("data/train",))
    (tmp_path / "femnist" / "data" / "train" / "all_data_0.json").write_text(content)
    assert words in refused("femnist", tmp_path)


def test_femnist_npz_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "femnist").mkdir()
    assert "0 .npz files and none of LEAF's" in refused("femnist", tmp_path)
    path = tmp_path / "femnist" / "a.npz"
    np.savez(path, x=np.zeros((4, 28, 28), np.uint8), y=np.zeros(4, int))
    assert "expected a client for each record" in refused("femnist", tmp_path)
    path.write_bytes(path.read_bytes()[:-50])
    assert "not a .npz file of plain arrays" in refused("femnist", tmp_path)


@pytest.mark.parametrize("content", [b"", b"<html>404</html>", b'"2","1","d","q","u","x"\n', b"a,b\n1,2\n"])
def test_a_csv_of_which_nothing_is_left(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sent140").mkdir()
    assert "0 csv files" in refused("sent140", tmp_path)
    (tmp_path / "sent140" / "mine.csv").write_bytes(content)
    assert "no row of six columns" in refused("sent140", tmp_path)
    (tmp_path / "sent140" / "mine.csv.gz").write_bytes(gzip.compress(content))
    assert "2 csv files" in refused("sent140", tmp_path)

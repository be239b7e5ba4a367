"""A data set that was read once comes from the cache the next time, but only if its files are still the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedceo.data import load_source
from fedceo.data.cache import _checksum, cache_folder
from tests.support.published_layouts import write_cifar10, write_leaf

pytestmark = pytest.mark.usefixtures("unpublished")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDCEO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fail(*given: Any) -> None:
    raise AssertionError("read again")


def test_a_second_time_nothing_is_read(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path)
    first = load_source("cifar10", tmp_path)
    (kept,) = folder.iterdir()
    assert kept.name.startswith("cifar10-") and kept.suffix == ".safetensors"
    monkeypatch.setattr("fedceo.data.sets.cifar10.read_file", fail)
    again = load_source("cifar10", tmp_path)
    for name in ("x", "y", "test_x", "test_y"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    assert (first.mean, first.std, first.classes, first.name) == (again.mean, again.std, again.classes, again.name)


def test_clients_are_kept_too(tmp_path: Path) -> None:
    write_leaf(tmp_path, {"a": [1], "b": [2, 3]}, ("train",))
    first, again = (load_source("femnist", tmp_path) for _ in range(2))
    assert first.client is not None and again.client is not None and torch.equal(first.client, again.client)


def test_the_file_is_mapped_and_stays_as_it_is(tmp_path: Path, folder: Path) -> None:
    write_cifar10(tmp_path)
    source = load_source("cifar10", tmp_path)
    (kept,) = folder.iterdir()
    before = kept.read_bytes()
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(kept) in maps.read_text()
    source.x[:] = 0
    assert kept.read_bytes() == before


def test_changed_files_are_read_anew(tmp_path: Path, folder: Path) -> None:
    batches = write_cifar10(tmp_path)
    load_source("cifar10", tmp_path)
    changed = 255 - batches["test_batch"]
    changed[:, 0] = 7
    changed.tofile(tmp_path / "cifar-10-batches-bin" / "test_batch.bin")
    np.testing.assert_array_equal(load_source("cifar10", tmp_path).test_x.flatten(1), changed[:, 1:])
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("kept", [0, 7, 100, 10_000])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, folder: Path, kept: int) -> None:
    write_cifar10(tmp_path)
    load_source("cifar10", tmp_path)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[:kept])
    assert len(load_source("cifar10", tmp_path).y) == 40
    assert path.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path: Path, folder: Path) -> None:
    folder.write_text("a file")
    write_cifar10(tmp_path)
    assert len(load_source("cifar10", tmp_path).y) == 40


def test_nothing_is_left_of_a_write_that_fails(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("fedceo.data.cache.save_file", full)
    write_cifar10(tmp_path)
    assert len(load_source("cifar10", tmp_path).y) == 40
    assert list(folder.iterdir()) == []


def test_the_default_is_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDCEO_CACHE")
    assert cache_folder().is_absolute() and "fedceo" in str(cache_folder())


def flipped(whole: bytes, index: int, bit: int) -> bytes:
    return whole[:index] + bytes((whole[index] ^ (1 << bit),)) + whole[index + 1 :]


def test_a_flipped_bit_anywhere_is_made_anew(tmp_path: Path, folder: Path) -> None:
    """In the header, in what it says of the source, in the records: never another source, never another end."""
    write_leaf(tmp_path, {"a": [1, 2], "b": [3]}, ("train",))
    first = load_source("femnist", tmp_path)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    rng = np.random.default_rng(0)
    for index in (*range(header), *rng.integers(header, len(whole), 150).tolist()):
        path.unlink()  # the old file is mapped by the source read from it
        path.write_bytes(flipped(whole, index, int(rng.integers(8))))
        again = load_source("femnist", tmp_path)
        for name in ("x", "y", "test_x", "test_y", "client"):
            assert torch.equal(getattr(first, name), getattr(again, name)), index
        assert (first.mean, first.std, first.classes, first.note) == (again.mean, again.std, again.classes, again.note)


@pytest.mark.parametrize(
    "said", ["", "{", "[]", "null", "[" * 9999, '{"name": "x"}', '{"mean": 3, "std": 4}', '{"unknown": 1}']
)
@pytest.mark.parametrize("right", [True, False], ids=["right checksum", "none"])
def test_a_cache_that_says_something_else_is_made_anew(tmp_path: Path, folder: Path, said: str, right: bool) -> None:
    write_cifar10(tmp_path)
    first = load_source("cifar10", tmp_path)
    (path,) = folder.iterdir()
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    path.unlink()
    save_file(tensors, path, {"source": f"{_checksum(tensors, said)} {said}" if right else said})
    assert torch.equal(load_source("cifar10", tmp_path).x, first.x)


@pytest.mark.parametrize("length", [0, 1, 7, 10**6, 2**31, 2**63, 2**64 - 1])
def test_a_header_of_another_size_than_it_says(tmp_path: Path, folder: Path, length: int) -> None:
    write_cifar10(tmp_path)
    first = load_source("cifar10", tmp_path)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(length.to_bytes(8, "little") + whole[8:])
    assert torch.equal(load_source("cifar10", tmp_path).x, first.x) and path.read_bytes() == whole

"""Small files that say that they are large, or unpack to it: refused in one line before memory is taken."""

import gzip
import io
import pickle
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedceo.data import load_source
from fedceo.data.arrays import read_npz
from fedceo.data.files import ALWAYS_TAKEN, MOST_GROWTH, check_growth
from fedceo.errors import UsageError

GIGABYTE = 2**30
Y = np.arange(10) % 3


def npy(header: str, values: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version[0] == 1 else 4, "little") + text + values


def saying(shape: str, kind: str = "'<f8'") -> str:
    return f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}"


def write_npz(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in ({"y": npy(saying("(10,)", "'<i8'"), Y.tobytes())} | members).items():
            archive.writestr(f"{name}.npy", content)


def refusal(path: Path) -> str:
    """The message with which a file is refused, before as much memory is taken as a small data set needs."""
    tracemalloc.start()
    try:
        with pytest.raises(UsageError) as caught:
            read_npz(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message and peak < 2**24
    return message


X = np.ones((10, 2)).tobytes()


@pytest.mark.parametrize(
    "x, words",
    [
        (npy(saying("(1000000000, 100)"), X), "the header of x.npy says 800,000,000,000 bytes of values, it holds 160"),
        (npy(saying("(10, 3)"), X), "says 240 bytes of values, it holds 160"),
        (npy(saying("(10, 1)"), X), "says 80 bytes of values, it holds 160"),
        (npy(saying("(-10, -2)"), X[:0]), "says 160 bytes of values, it holds 0"),
        (npy(saying("(9223372036854775807, 9223372036854775807)"), X), "bytes of values, it holds 160"),
        (npy(saying("(10, 2)", "'<U100000000'"), X), "bytes of values, it holds 160"),
        (npy(saying("(1000000000000, 1)", "'|S0'")), "x.npy holds |S0, expected numbers or strings"),
        (npy(saying("(10, 2)", "'|V0'")), "expected numbers or strings"),
        (npy(saying("(10,)", "'|O'"), pickle.dumps([1] * 10)), "x.npy holds object, expected numbers or strings"),
        (npy(saying("(10,)", "[('a', '|O')]"), pickle.dumps([1] * 10)), "expected numbers or strings"),
        (npy(saying("(10, 2)"), X, b"\x03\x00"), "x.npy is of format (3, 0)"),
        (npy(saying("(10, 2)"), X, b"\x09\x00"), "x.npy is of format (9, 0)"),
        (npy("[" * 5000, X), "not a .npz file of plain arrays: "),
        (npy("{" + "'a': 1, " * 9000, X, b"\x02\x00"), "not a .npz file of plain arrays: "),
        (npy(saying("(10, 2)", "'<q9'"), X), "not a .npz file of plain arrays: "),
        (npy(saying("(10, 2), 'more': 1"), X), "not a .npz file of plain arrays: "),
        (npy(saying("'ten'"), X), "not a .npz file of plain arrays: "),
        (npy(saying("(" + "1, " * 100 + ")", "'|u1'"), b"1"), "not a .npz file of plain arrays: "),
        (b"no array", "not a .npz file of plain arrays: "),
        (b"", "not a .npz file of plain arrays: "),
        (pickle.dumps(X), "not a .npz file of plain arrays: "),
    ],
)
def test_headers_that_lie(tmp_path: Path, x: bytes, words: str) -> None:
    write_npz(tmp_path / "my.npz", x=x)
    assert words in refusal(tmp_path / "my.npz")


def test_clients_without_names(tmp_path: Path) -> None:
    """A thousand billion names of no bytes fit into no file, and would into no memory once they are counted."""
    write_npz(tmp_path / "my.npz", x=npy(saying("(10, 2)"), X), client=npy(saying("(1000000000000,)", "'|S0'")))
    assert "client.npy holds |S0" in refusal(tmp_path / "my.npz")


def test_the_directory_of_an_archive_that_lies(tmp_path: Path) -> None:
    """The sizes that a zip file gives for a member, changed to a terabyte and its header with them."""
    path = tmp_path / "my.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", npy(saying("(125000000, 1)"), X))
        archive.writestr("y.npy", npy(saying("(10,)", "'<i8'"), Y.tobytes()))
        archive.getinfo("x.npy").file_size = archive.getinfo("x.npy").compress_size = GIGABYTE
    assert "bytes that unpack to 1,073,741,9" in refusal(path)


def test_an_array_of_zeros_that_was_packed(tmp_path: Path) -> None:
    """The header is honest: only the growth shows that it is a bomb."""
    path = tmp_path / "my.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        member.write(npy(saying(f"({ALWAYS_TAKEN // 8}, 1)")))
        for _ in range(ALWAYS_TAKEN // 2**20):
            member.write(bytes(2**20))
    assert path.stat().st_size < 2**19
    assert f"refused: {path.stat().st_size:,} bytes that unpack to 268,435,5" in refusal(path)


def test_growth_that_data_have() -> None:
    check_growth("mine", 10, ALWAYS_TAKEN)
    check_growth("mine", ALWAYS_TAKEN, MOST_GROWTH * ALWAYS_TAKEN)
    with pytest.raises(UsageError, match=r"^mine: refused: 10 bytes that unpack to 268,435,457 or more"):
        check_growth("mine", 10, ALWAYS_TAKEN + 1)


def bomb(size: int) -> bytes:
    out = io.BytesIO()
    with gzip.open(out, "wb", 9) as file:
        for _ in range(size // 2**20):
            file.write(bytes(2**20))
    return out.getvalue()


def test_text_that_was_packed(tmp_path: Path) -> None:
    (tmp_path / "sent140").mkdir()
    (tmp_path / "sent140" / "mine.csv.gz").write_bytes(bomb(ALWAYS_TAKEN + 2**20))
    with pytest.raises(
        UsageError, match=r"^[^\n]*mine.csv.gz: refused: [0-9,]+ bytes that unpack to 269,484,032 or more"
    ):
        load_source("sent140", tmp_path)


@pytest.mark.usefixtures("unpublished")
@pytest.mark.parametrize("size", [10**6, 2**33, 2**70])
@pytest.mark.parametrize("packed", [True, False])
def test_members_of_archives_that_are_not_as_large_as_they_say(tmp_path: Path, size: int, packed: bool) -> None:
    folder, archive = tmp_path / "cifar-10-batches-bin", tmp_path / "cifar-10-binary.tar.gz"
    member = tarfile.TarInfo(f"{folder.name}/data_batch_1.bin")
    member.size = size
    content = member.tobuf(tarfile.GNU_FORMAT) + bytes(2048)
    archive.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(UsageError, match="truncated") as caught:
        load_source("cifar10", tmp_path)
    assert "\n" not in str(caught.value)

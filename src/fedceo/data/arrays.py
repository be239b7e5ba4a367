"""A user's own records, from arrays or from a .npz file.

source = from_arrays(x, y, client=writer)
source = read_npz(Path("my.npz"))
"""

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedceo.data.files import check_growth, first_line
from fedceo.data.source import Source, hold_out
from fedceo.errors import UsageError

ARRAYS = ("x", "y", "client", "test_x", "test_y")
"""The arrays of a .npz file that are read."""
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Readers of an array's header by the version of its format; later versions are for arrays that are no numbers."""


def from_arrays(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    client: npt.ArrayLike | None = None,
    test_x: npt.ArrayLike | None = None,
    test_y: npt.ArrayLike | None = None,
    name: str = "arrays",
) -> Source:
    """A source made from the user's own arrays, which are checked and copied.

    Args:
        x: (records, ...). uint8 are pixels, (records, height, width) or (records, channels, height, width), and stay
            uint8; all other numbers become float32.
        y: (records,) integer labels, counted from 0; or (records,) or (records, targets) floats, the numbers to
            predict; or (records, labels) integers, 0 or 1 for every label.
        client: (records,) integers or strings: the natural client of each record.
        test_x: records of the public test set. Left out, it is a fixed fifth of the records; data with client ids is
            divided later, when it is known whether its natural clients hold out records of their own.
        test_y: their labels.
        name: the data's name in tables and errors.
    """
    if (test_x is None) != (test_y is None):
        raise UsageError(f"{name}: test_x and test_y must be given together")
    values, labels = _values(x, f"{name}: x"), _labels(y, f"{name}: y")
    if len(values) != len(labels):
        raise UsageError(f"{name}: x has {len(values)} records but y has {len(labels)}")
    owners, ids = (None, ()) if client is None else owners_of(client, f"{name}: client")
    has_labels = labels.ndim == 1
    classes = (int(labels.max()) + 1 if len(labels) else 0) if has_labels else labels.shape[1]
    if has_labels and classes > len(labels) > 0:
        raise UsageError(f"{name}: y has label {classes - 1} but only {len(labels)} records; labels count from 0")
    if test_x is not None and test_y is not None:
        held_x, held_y = _values(test_x, f"{name}: test_x"), _labels(test_y, f"{name}: test_y")
    elif owners is None:
        train, test = hold_out(len(labels))
        values, held_x, labels, held_y = values[train], values[test], labels[train], labels[test]
    else:
        held_x, held_y = values[:0], labels[:0]
    first = int(torch.cat([labels, held_y]).min()) if has_labels and held_y.ndim == 1 and classes else 0
    if first == 1:
        raise UsageError(f"{name}: y has labels from 1 to {classes - 1}, expected labels that count from 0; give y - 1")
    return Source(name, values, labels, held_x, held_y, classes, client=owners, client_names=ids)


def read_npz(path: Path) -> Source:
    """A source from the arrays x, y and, where present, client, test_x and test_y of a .npz file.

    Nothing is unpickled, and no memory is taken for an array before its header agrees with the file.
    """
    try:
        with path.open("rb") as stream, zipfile.ZipFile(_not_one_array(stream)) as file:
            members = {info.filename.removesuffix(".npy"): info for info in file.infolist()}
            wanted = [members[key] for key in ARRAYS if key in members]
            check_growth(str(path), path.stat().st_size, sum(info.file_size for info in wanted))
            arrays = {key: _read_array(file, members[key]) for key in ARRAYS if key in members}
    except FileNotFoundError:
        raise UsageError(f"data.path: {path}: no such file") from None
    except UsageError:
        raise
    except Exception as error:  # a damaged header, which NumPy evaluates, can fail in any way
        raise UsageError(f"{path}: not a .npz file of plain arrays: {first_line(error)}") from None
    missing = [key for key in ("x", "y") if key not in arrays]
    if missing:
        found = ", ".join(members) or "nothing"
        raise UsageError(f"{path}: no array named {' or '.join(missing)}; it holds {found}")
    return from_arrays(name=path.name, **arrays)


def _not_one_array(stream: IO[bytes]) -> IO[bytes]:
    """The stream, unless it is what np.save writes."""
    if stream.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
        raise ValueError("it holds one array, expected x and y")
    stream.seek(0)
    return stream


def _read_array(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    """The array of a member, if the member has as many bytes as the array's header says."""
    with file.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in HEADERS:
            raise ValueError(f"{member.filename} is of format {version}")
        shape, is_fortran, dtype = HEADERS[version](stream)
        if dtype.hasobject or dtype.itemsize == 0:
            raise ValueError(f"{member.filename} holds {dtype}, expected numbers or strings")
        said, there = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
        if said != there:
            raise ValueError(f"the header of {member.filename} says {said:,} bytes of values, it holds {there:,}")
        return np.frombuffer(stream.read(), dtype).reshape(shape, order="F" if is_fortran else "C")


def _values(given: npt.ArrayLike, where: str) -> Tensor:
    array = _array(given, where)
    if array.dtype.kind not in "fiub" or array.ndim < 2 or 0 in array.shape[1:]:
        raise UsageError(f"{where}: expected numbers, (records, ...), got {array.dtype} {array.shape}")
    if array.dtype != np.uint8:
        with np.errstate(over="ignore"):  # a number too large for float32 becomes Inf, which is refused
            return torch.from_numpy(np.array(array, np.float32, order="C"))
    images = torch.from_numpy(np.array(array, order="C"))
    return images.unsqueeze(1) if images.ndim == 3 else images


def _labels(given: npt.ArrayLike, where: str) -> Tensor:
    array = _array(given, where)
    if (array.dtype.kind == "f" and array.ndim in (1, 2)) or (array.dtype.kind in "iub" and array.ndim == 2):
        with np.errstate(over="ignore"):
            return torch.from_numpy(array.astype(np.float32).reshape(len(array), -1))
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise UsageError(f"{where}: expected integers or floats, (records,), got {array.dtype} {array.shape}")
    if len(array) and (array.min() < 0 or array.max() >= 2**31):
        raise UsageError(f"{where}: expected labels counted from 0, got {array.min()} to {array.max()}")
    return torch.from_numpy(array.astype(np.int64))


def owners_of(given: npt.ArrayLike, where: str) -> tuple[Tensor, tuple[str, ...]]:
    """Each record's client as a number, and what the data call these clients."""
    array = _array(given, where)
    if array.dtype.kind not in "iuUS" or array.ndim != 1:
        raise UsageError(f"{where}: expected integers or strings, (records,), got {array.dtype} {array.shape}")
    names, numbers = np.unique(array.astype(np.str_) if array.dtype.kind == "S" else array, return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), tuple(map(str, names.tolist()))


def _array(given: npt.ArrayLike, where: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UsageError(f"{where}: not an array: {first_line(error)}") from None

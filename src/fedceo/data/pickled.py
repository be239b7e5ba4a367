"""A reader of CIFAR-10's Python version that runs no code of the files, which are pickles and could name any program.

The reader resolves the few names that these files contain to stand-ins that only store their arguments, and refuses
every other name.
"""

import io
import pickle
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedceo.data.files import Content, first_line
from fedceo.errors import UsageError

IMAGE = 3 * 32 * 32


def read_batch(content: Content) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images, (records, 3072), and labels, (records,), of a batch file."""
    try:
        batch = _Reader(io.BytesIO(content.data), encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise UsageError(f"{content.where}: refused: {first_line(error)}") from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise UsageError(f"{content.where}: truncated or corrupt: {first_line(error)}") from None
    entries = {_text(key): value for key, value in batch.items()} if isinstance(batch, dict) else {}
    images, labels = entries.get("data"), entries.get("labels")
    if not isinstance(images, _Array) or not isinstance(labels, list):
        raise UsageError(f"{content.where}: not a batch of CIFAR-10: expected an array data and a list labels")
    shape, raw, order = images.shape, images.raw, images.order
    if images.kind != "u1" or len(shape) != 2 or shape[1] != IMAGE or len(raw) != prod(shape):
        raise UsageError(f"{content.where}: not a batch of CIFAR-10: expected bytes, (records, {IMAGE})")
    if len(labels) != shape[0] or not all(type(label) is int and 0 <= label < 2**31 for label in labels):
        raise UsageError(f"{content.where}: expected {shape[0]} labels, one for each image, got {len(labels)}")
    return np.frombuffer(raw, np.uint8).reshape(shape, order=order), np.array(labels, np.int64)


class _Array:
    """A stand-in for numpy.ndarray that stores the array's shape and bytes."""

    shape: tuple[int, ...] = ()
    kind = ""
    raw = b""
    order: Literal["C", "F"] = "C"

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        if not isinstance(kind, _Kind) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array of something other than plain bytes")
        self.shape, self.kind, self.raw = tuple(map(int, shape)), kind.name, raw
        self.order = "F" if fortran else "C"


class _Kind:
    """A stand-in for numpy.dtype that stores the dtype's name."""

    def __init__(self, name: Any, *rest: Any) -> None:
        self.name = _text(name)

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and alignment, which single bytes do not have."""


def _array(*given: Any) -> _Array:
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    """A stand-in for the call by which Python 3 writes bytes into a pickle of protocol 2."""
    return text.encode("latin1")


STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "_reconstruct"): _array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encode,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no file of CIFAR-10 does") from None


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)

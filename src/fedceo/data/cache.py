"""A cache of data sets that have been read, and of features made from them, one memory-mapped file each.

A cached file's name carries the checksum of what it was made from: changed source files are read anew. Inside it is the
checksum of what was made: a cached file that a disk has changed since is made anew.
"""

import contextlib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import ref

import platformdirs
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedceo.data.files import expanded
from fedceo.data.source import Source

TENSORS = ("x", "y", "test_x", "test_y", "client")
LISTS = ("mean", "std", "label_names", "client_names")
ABOUT = ("name", "classes", "note", *LISTS)
HELD: dict[Path, tuple[dict[str, ref[Tensor]], str, tuple[int, ...]]] = {}
"""What was read from each file, as long as somebody holds it: to check a gigabyte takes longer than many a run."""


def cache_folder() -> Path:
    """The folder that the environment variable FEDCEO_CACHE names, or the user's cache folder on this platform."""
    named = os.environ.get("FEDCEO_CACHE")
    if named:
        return expanded(named, "FEDCEO_CACHE")
    return Path(platformdirs.user_cache_dir("fedceo", appauthor=False))


def read_cached(key: str) -> Source | None:
    """The source cached under a key, memory-mapped; None if it is missing, damaged or of another version."""
    tensors, said = read_tensors(key)
    try:
        about: dict[str, Any] = json.loads(said)
        about |= {each: tuple(about[each]) for each in LISTS if each in about}
        return Source(**about, **tensors)
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def keep(key: str, source: Source) -> None:
    """Cache a source as `keep_tensors` says."""
    found = {name: getattr(source, name) for name in TENSORS}
    tensors = {name: tensor.contiguous() for name, tensor in found.items() if tensor is not None}
    keep_tensors(key, tensors, json.dumps({name: getattr(source, name) for name in ABOUT}))


def read_tensors(key: str) -> tuple[dict[str, Any], str]:
    """The tensors cached under a key, memory-mapped, and what is said about them; nothing where they are damaged."""
    path = cache_folder() / f"{key}.safetensors"
    try:
        written = _written(path)
        if (held := _held(path, written)) is not None:
            return held
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            checksum, _, said = file.metadata()["source"].partition(" ")
    except (SafetensorError, OSError, KeyError, TypeError):
        return {}, ""
    if checksum != _checksum(tensors, said):
        return {}, ""
    HELD[path] = {name: ref(tensor) for name, tensor in tensors.items()}, said, written
    return tensors, said


def _held(path: Path, written: tuple[int, ...]) -> tuple[dict[str, Any], str] | None:
    """What was read from a file before, where all of it is held still and nobody has written to the file since."""
    found, said, before = HELD.get(path, ({}, "", ()))
    tensors = {name: tensor() for name, tensor in found.items()}
    is_held = before == written and all(each is not None for each in tensors.values())
    return (tensors, said) if is_held else None


def _written(path: Path) -> tuple[int, ...]:
    about = path.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns


def keep_tensors(key: str, tensors: Mapping[str, Tensor], said: str = "") -> None:
    """Cache tensors, whole or not at all; where the folder cannot be written, nothing is cached."""
    path = cache_folder() / f"{key}.safetensors"
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(dict(tensors), unfinished, {"source": f"{_checksum(tensors, said)} {said}"})
        unfinished.replace(path)
    except (OSError, SafetensorError):
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def _checksum(tensors: Mapping[str, Tensor], said: str) -> str:
    """CRC-32 of the tensors, with their names, dtypes and shapes, and of what is said about them.

    It finds what a disk does to a file; SHA-256 would take longer than all else in the reading of a cached file.
    """
    found = zlib.crc32(said.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"

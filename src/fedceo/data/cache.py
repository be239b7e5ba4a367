"""A cache of data sets that have been read, one memory-mapped file each, so that the next run has them at once.

A cached file's name carries the checksum of the source files: changed source files are read anew.
"""

import contextlib
import json
import os
from pathlib import Path

import platformdirs
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedceo.data.source import Source

TENSORS = ("x", "y", "test_x", "test_y", "client")
ABOUT = ("name", "classes", "mean", "std", "note")


def cache_folder() -> Path:
    """The folder that the environment variable FEDCEO_CACHE names, or the user's cache folder on this platform."""
    named = os.environ.get("FEDCEO_CACHE")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("fedceo", appauthor=False))


def read_cached(key: str) -> Source | None:
    """The source cached under a key, memory-mapped; None if it is missing or damaged."""
    path = cache_folder() / f"{key}.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            about = json.loads(file.metadata()["source"])
    except (SafetensorError, OSError, KeyError, TypeError):
        return None
    return Source(**tensors, **about | {each: tuple(about[each]) for each in ("mean", "std")})


def keep(key: str, source: Source) -> None:
    """Cache a source, whole or not at all; where the folder cannot be written, nothing is cached."""
    path = cache_folder() / f"{key}.safetensors"
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    tensors = {name: getattr(source, name) for name in TENSORS if getattr(source, name) is not None}
    about = {name: getattr(source, name) for name in ABOUT}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()}, unfinished, {"source": json.dumps(about)}
        )
        unfinished.replace(path)
    except (OSError, SafetensorError):
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)

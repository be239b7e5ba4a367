"""A disk that fails once, at any step of everything that is written to it."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

How = Literal["full", "exit"]
EXIT = 77
"""The exit code of a process that ends at the step."""


@contextmanager
def failing_disk(root: Path, step: int, how: How) -> Iterator[list[str]]:
    """Fail at one step of what is written below a folder while inside; yields the names of the steps so far.

    Steps are files opened to be written, writes, syncs of files and folders, renames, removals and new folders.

    Args:
        step: the number of the step that fails, from 1; a write has then written half of its bytes. 0: none fails.
        how: "full", an OSError that says so; "exit", the end of the process.
    """
    steps: list[str] = []
    files: dict[int, str] = {}
    real = {name: getattr(os, name) for name in ("open", "close", "write", "fsync", "replace", "unlink", "mkdir")}

    def fail() -> None:
        if how == "exit":
            os._exit(EXIT)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def is_due(what: str) -> bool:
        steps.append(what)
        return len(steps) == step

    def on_path(name: str) -> Any:
        def function(path: Any, *args: Any, **options: Any) -> Any:
            if Path(path).is_relative_to(root) and is_due(f"{name} {Path(path).name}"):
                fail()
            return real[name](path, *args, **options)

        return function

    def open_(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if not Path(path).is_relative_to(root):
            return int(real["open"](path, flags, *args, **options))
        if flags & (os.O_WRONLY | os.O_RDWR) and is_due(f"open {Path(path).name}"):
            fail()
        file = int(real["open"](path, flags, *args, **options))
        files[file] = Path(path).name
        return file

    def write(file: int, content: Any) -> int:
        if file in files and is_due(f"write {files[file]}"):
            real["write"](file, content[: len(content) // 2])
            fail()
        return int(real["write"](file, content))

    def fsync(file: int) -> None:
        if file in files and is_due(f"fsync {files[file]}"):
            fail()
        real["fsync"](file)

    def close(file: int) -> None:
        files.pop(file, None)
        real["close"](file)

    changed: dict[str, Any] = {"open": open_, "close": close, "write": write, "fsync": fsync}
    changed |= {name: on_path(name) for name in ("replace", "unlink", "mkdir")}
    with patch.multiple(os, **changed):
        yield steps

"""Packages whose names are imported when they are first used: torch takes seconds, and few commands need all."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def on_first_use(
    package: str, homes: Mapping[str, Sequence[str]], rooms: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The package's `__getattr__` and `__dir__`; the latter has the names that nobody has used yet, too.

    Args:
        homes: module -> the names that it has to offer.
        rooms: modules of the package that are offered whole.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name in rooms:
            return import_module(f"{package}.{name}")
        if name in home_of:
            return getattr(import_module(home_of[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of, *rooms})

    return get, names

"""Imports that wait until they are needed: torch alone takes two seconds, and few commands need it.

    from fedceo.lazy import torch          # a stand-in that imports torch when one of its attributes is first used

The files of methods and mechanisms hold settings that every command reads beside code that only a run needs, so they
import torch this way.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any


class LazyModule(ModuleType):
    """A module that is imported when one of its attributes is first asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # who inspects modules in sys.modules shall not import this one
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import torch as torch
else:
    torch = LazyModule("torch")


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

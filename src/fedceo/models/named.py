"""An architecture of the user's own, named in an experiment file as "module:callable"."""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from fedceo.errors import UsageError


def is_own(name: str) -> bool:
    return ":" in name


def own_model(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """What the callable makes of (shape of a record, number of classes).

    The module is looked for in the working directory, then among what is installed.
    """
    module, _, attribute = name.partition(":")
    _check_there(name, module)
    make = getattr(_call(name, import_module, module), attribute, None)
    if not callable(make):
        raise UsageError(f"model.name: {name!r}, expected {attribute!r} in {module} to be called with (shape, classes)")
    model = _call(name, make, shape, classes)
    if not isinstance(model, nn.Module) or not any(p.requires_grad for p in model.parameters()):
        raise UsageError(f"model.name: {name!r} gives {type(model).__name__}, expected a torch module with parameters")
    return model


def _check_there(name: str, module: str) -> None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        known = find_spec(module) is not None
    except (ImportError, ValueError):  # a package on the way to it is missing, or it is no name of a module
        known = False
    if not known:
        raise UsageError(f"model.name: {name!r}, but there is no module {module!r} here or installed")


def _call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's answer; whatever the user's code raises in it is said in a line and kept as the cause."""
    try:
        return function(*arguments)
    except Exception as error:
        first = str(error).partition("\n")[0]
        raise UsageError(f"model.name: {name!r} failed with {type(error).__name__}: {first}") from error

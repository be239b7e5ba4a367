"""Models and methods of the user's own, which experiment files name as "module:name"."""

import ast
import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedceo.errors import UsageError

BASE = "fedceo.methods.OwnMethod"
"""The base class of a user's own method."""


def is_own(name: str) -> bool:
    return ":" in name


def find(field: str, name: str) -> Any:
    """The object that "module:name" names; its module is in the working directory or installed.

    Args:
        field: the field of the experiment file that names it, for errors.
    """
    module, _, attribute = name.partition(":")
    _check_there(field, name, module)
    found = call(field, name, import_module, module)
    if not hasattr(found, attribute):
        near = get_close_matches(attribute, vars(found), n=1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise UsageError(f"{field}: {name!r}, but {module} has no {attribute!r}{hint}")
    return getattr(found, attribute)


def call(field: str, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's result; an exception of the user's code becomes one line, and is kept as its cause."""
    try:
        return function(*arguments)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        first = next(iter(str(error).strip().splitlines()), "")
        said = f"{field}: {name!r} failed with {type(error).__name__}: {first}{_place(name, error)}"
        raise UsageError(said) from error


def _place(name: str, error: BaseException) -> str:
    """The line of the user's module that raised, or else of other code; none where the call itself did not fit."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({Path(error.filename).name}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    module = sys.modules.get(name.partition(":")[0])
    mine = [frame for frame in frames if frame.filename == getattr(module, "__file__", None)]
    frame = (mine or frames)[-1]
    return "" if frame.filename == __file__ else f" ({Path(frame.filename).name}, line {frame.lineno})"


@cache
def digest_of_code(kind: Callable[..., Any]) -> str:
    """SHA-256 of the code of the modules that a function, or a class and its bases, are in, as first read.

    Comments do not count.

    It is empty where the source of one of them cannot be had.
    """
    modules = dict.fromkeys(each.__module__ for each in getattr(kind, "__mro__", (kind,)))
    digest = hashlib.sha256()
    for module in modules:
        if module == "builtins" or module.partition(".")[0] == "fedceo":
            continue
        try:
            digest.update(ast.dump(ast.parse(inspect.getsource(sys.modules[module]))).encode())
        except (OSError, TypeError, KeyError, SyntaxError):
            return ""
    return digest.hexdigest()


def _check_there(field: str, name: str, module: str) -> None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        known = module in sys.modules or find_spec(module) is not None
    except (ImportError, ValueError):  # a package on the way to it is missing, or it is no name of a module
        known = False
    if not known:
        raise UsageError(f"{field}: {name!r}, but there is no module {module!r} in {here} or installed")

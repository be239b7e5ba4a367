"""Registries: what an experiment file can name, each thing registered by a decorator in the one file that defines it.

    MODELS: Registry[Callable[..., nn.Module]] = Registry("model", "fedceo.models")

    @MODELS.register("logistic", "logistic regression")
    class Logistic(nn.Module): ...

    MODELS["logistic"]

The files of the library's own package are imported when a name is first looked up, so that a new file in the package is
all that a new method, mechanism, model or data set needs. Packages of others take part through an entry point in the
group of the same name, unless the registry says another: the module that it names registers what it brings when it is
imported.
"""

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from fedceo.errors import UsageError

Thing = TypeVar("Thing")
Registered = TypeVar("Registered")


class Registry(Mapping[str, Thing], Generic[Thing]):
    """Things by name, in the order of the alphabet: an order of files would change with what was imported first.

    Attributes:
        kind: what a thing is called in messages, such as "model".
        package: the package whose files register the library's own.
        group: the group of entry points through which other packages register theirs.
    """

    def __init__(self, kind: str, package: str, group: str | None = None) -> None:
        self.kind, self.package, self.group = kind, package, group or package
        self._descriptions: dict[str, str] = {}
        self._things: dict[str, Thing] = {}
        self._is_loaded = False

    def register(self, name: str, description: str) -> Callable[[Registered], Registered]:
        """A decorator that puts a class or function under a name; the description is a line for `fedceo list`."""

        def put(thing: Registered) -> Registered:
            there = self._things.get(name)
            if there is not None and _home(there) != _home(thing):
                raise UsageError(f"{self.kind} {name!r}: registered by {_home(there)} and again by {_home(thing)}")
            self._things[name], self._descriptions[name] = thing, description  # type: ignore[assignment]
            return thing

        return put

    def __getitem__(self, name: str) -> Thing:
        if name not in self._things:
            self._load()
        return self._things[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._things))

    def __len__(self) -> int:
        self._load()
        return len(self._things)

    @property
    def descriptions(self) -> Mapping[str, str]:
        """Each thing's line for `fedceo list`, by name."""
        return {name: self._descriptions[name] for name in self}

    def unknown(self, name: str) -> str:
        """The message for a name that is not registered."""
        near = get_close_matches(name.lower(), self, n=1)
        hint = f", did you mean {near[0]}? " if near else "; "
        return f"unknown {self.kind} {name!r}{hint}known are {', '.join(self)}"

    def _load(self) -> None:
        if self._is_loaded:
            return
        self._is_loaded = True  # first, since the files that are imported may look names up
        home = import_module(self.package)
        for module in pkgutil.iter_modules(home.__path__):
            import_module(f"{self.package}.{module.name}")
        for entry in entry_points(group=self.group):
            try:
                entry.load()
            except Exception as error:  # the code of others: a broken package must be named, not guessed
                self._is_loaded = False  # the next lookup must fail in the same way, not go on without the package
                raise UsageError(
                    f"entry point {entry.name} = {entry.value} of the group {self.group} failed with "
                    f"{type(error).__name__}: {error}"
                ) from error


def _home(thing: object) -> str:
    return f"{getattr(thing, '__module__', '?')}.{getattr(thing, '__qualname__', type(thing).__name__)}"


METHODS: Registry[Any] = Registry("method", "fedceo.methods")
"""The classes of `fedceo.methods`; they are looked up here so that an experiment file can be read without them."""
MECHANISMS: Registry[Any] = Registry("mechanism", "fedceo.mechanisms")
"""The classes of `fedceo.mechanisms`, likewise."""
TASKS: Registry[Any] = Registry("task", "fedceo.tasks")
"""The classes of `fedceo.tasks`, likewise."""

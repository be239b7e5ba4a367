"""A method of the user's own, named in an experiment file as "module:Class".

    class TrimmedMean(OwnMethod):
        needs_stack = True  # it must see each client's upload

        class Settings(MethodSettings):
            trim: int = 1

        def aggregate(self, weights, uploads, memory, round_):
            cut = self.settings.trim
            return {name: w.sort(0).values[cut : len(w) - cut].mean(0) for name, w in uploads.weights.items()}, {}

It answers two questions and no others: how local training differs from the experiment's, and what the server makes of
the uploads. Everything else is FedAvg's, so that what leaves a client is the whole model's change since the global one,
clipped and noised (or trained privately, under record-level privacy) before any code of the user's runs on it, and
neither records nor models of single clients come near that code in any other way. Hence the epsilon does not rest on a
word of its author: a method that does not need the stack is given nothing but the mean, so that the rows of averages
hold for whatever it makes of it; a method that needs single uploads gets only the server's row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import tomli_w
from pydantic import ValidationError, model_validator
from pydantic_core import ErrorDetails

from fedceo.errors import UsageError
from fedceo.experiment import plugins
from fedceo.experiment.base import first_mistake, one_line
from fedceo.experiment.method_table import OWN
from fedceo.experiment.registry import METHODS
from fedceo.lazy import torch
from fedceo.mechanisms.uploads import Stack, Uploads
from fedceo.methods.base import Method, MethodSettings, Setup, State

if TYPE_CHECKING:
    from fedceo.training.work import Work

FIELD = "method.name"
FREE = ("learning_rate", "momentum", "proximal", "outside", "outside_radius", "radius", "ascent", "only")
"""Fields of `Work` that a user's own method may change; the others are the experiment's: epsilon counts on them."""
NUMBER = "a number that is not negative"
EXPECTED = {"only": "a frozenset of parameters' names, or None", "radius": f"{NUMBER}, or None"}
KINDS = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
"""Types of the tensors that `memory` may hold, which are those that a checkpoint can."""


class OwnMethod:
    """The base class of a user's own method: FedAvg until it answers otherwise.

    Attributes:
        needs_stack: whether `aggregate` must see each client's upload, a `Stack`, or their mean alone, a `Mean`.
        settings: the fields of [method] other than `name`, as the inner class Settings knows them.
        clip: C.
        noise: standard deviation of the noise in an entry of an upload, None where there is no user-level noise.

    An object is made anew for every question; what is to be remembered belongs into `memory`.
    """

    needs_stack = False
    Settings = MethodSettings

    def __init__(self, *, settings: Any, clip: float, noise: float | None) -> None:
        self.settings, self.clip, self.noise = settings, clip, noise

    def local(self, work: Work) -> Work:
        """Local training of one round; of `work` the fields in FREE may be replaced (dataclasses.replace)."""
        return work

    def aggregate(
        self, weights: dict[str, torch.Tensor], uploads: Uploads, memory: dict[str, torch.Tensor], round_: int
    ) -> tuple[Mapping[str, torch.Tensor], dict[str, Any]]:
        """The next global model, name -> (...), and what the round's metrics should say, in JSON's types.

        Args:
            weights: the global model as it was.
            uploads: `uploads.mean()`, and with needs_stack `uploads.weights`, name -> (m, ...): the clients' models
                after local training, privatised.
            memory: tensors of the method's own by name, empty in the first round; what is in it afterwards is there
                in the next round, in the order of names, and in checkpoints.
            round_: counted from 1.
        """
        return uploads.mean(), {}


class HostedSettings(MethodSettings, extra="allow"):
    name: str
    """Your own, as module:Class, made from `fedceo.methods.OwnMethod`; the module lies in the working directory or is
    installed. Its fields are those of its inner class Settings."""

    @model_validator(mode="after")
    def _can_be_written(self) -> Self:
        if not re.fullmatch(r"[\w.]+:\w+", self.name):
            raise ValueError(f"name is {self.name!r}, expected module:Class")
        for field, value in (self.model_extra or {}).items():
            try:
                tomli_w.dumps({field: value})
            except (TypeError, ValueError, AttributeError):
                raise ValueError(f"{field} is {type(value).__name__}, expected a value that TOML has") from None
        return self

    @property
    def kind(self) -> Any:
        """The class that the file names; its module is imported here, not when an experiment file is read."""
        return self._understood()[0]

    @property
    def given(self) -> MethodSettings:
        """The fields as the class knows them."""
        return self._understood()[1]

    def _understood(self) -> tuple[Any, MethodSettings]:
        found = plugins.find(FIELD, self.name)
        if not isinstance(found, type) or not isinstance(getattr(found, "needs_stack", None), bool):
            said = found.__name__ if isinstance(found, type) else type(found).__name__
            raise UsageError(
                f"method.name: {self.name!r} is {said}, expected a class made from {plugins.BASE}, whose "
                "needs_stack is True or False"
            )
        settings = getattr(found, "Settings", MethodSettings)
        if (
            not isinstance(settings, type)
            or not issubclass(settings, MethodSettings)
            or "name" in settings.model_fields
        ):
            raise UsageError(
                f"method.name: the Settings of {self.name!r} are no class made from fedceo.methods.MethodSettings, or "
                "have a field called name"
            )
        read = plugins.call(FIELD, self.name, _read, settings, self.model_extra or {})
        if isinstance(read, MethodSettings):
            return found, read
        raise UsageError(one_line(read, lambda _: settings.model_fields, within=("method",)))

    def prepare(self) -> None:
        """A mistake in the fields is said before data are read."""
        self._understood()

    def identity(self) -> dict[str, Any]:
        return {"own_method": {"code": plugins.digest_of_code(self.kind), "release": self.release}}

    @property
    def release(self) -> str:
        """The kind of release, which follows from needs_stack: with single uploads only the server's row is proven."""
        return "stored" if self.kind.needs_stack else "average"

    @property
    def refused_on_nodes(self) -> str | None:
        return "is your own, and nodes have the methods of this library alone"


def _read(settings: type[MethodSettings], fields: Mapping[str, Any]) -> MethodSettings | ErrorDetails:
    """The settings, or what is wrong with the fields."""
    try:
        return settings.model_validate(fields)
    except ValidationError as error:
        return first_mistake(error)


@METHODS.register(OWN, " ".join(str(HostedSettings.model_fields["name"].description).split()))
class Hosted(Method):
    """A user's method behind the seam of all methods; a new object of its class answers each question."""

    Settings = HostedSettings

    def __init__(self, settings: HostedSettings, setup: Setup | None = None) -> None:
        super().__init__(settings, setup)
        kind = settings.kind
        if not issubclass(kind, OwnMethod):
            raise UsageError(
                f"{FIELD}: {settings.name!r} is {kind.__name__}, expected a class made from {plugins.BASE}"
            )
        plugins.digest_of_code(kind)  # now, before the file may change
        self.name, self.needs_stack, self.names = settings.name, kind.needs_stack, frozenset(self.setup.weights)
        self._kind, self._given = kind, settings.given

    def make(self) -> OwnMethod:
        """A new object of the user's class."""
        made: OwnMethod = self._kind(settings=self._given, clip=self.setup.clip, noise=self.setup.noise)
        return made

    def phases(self, work: Work) -> Sequence[Work]:
        changed = plugins.call(FIELD, self.name, lambda: self.make().local(work))
        if type(changed) is not type(work):
            raise self._error(f"local gives {type(changed).__name__}, expected a Work")
        for name in vars(work):
            value = getattr(changed, name)
            if name not in FREE and value != getattr(work, name):
                raise self._error(f"local changes {name}, expected no other fields than {', '.join(FREE)}")
            if name in FREE and not self._is_sound(name, value):
                raise self._error(f"local gives {value!r} for {name}, expected {EXPECTED.get(name, NUMBER)}")
        return (changed,)

    def _is_sound(self, name: str, value: Any) -> bool:
        if name == "only":
            return value is None or (isinstance(value, frozenset) and bool(value) and value <= self.names)
        return (value is None and name == "radius") or (isinstance(value, int | float) and 0 <= value < 1e30)

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        memory = {name: tensor.clone() for name, tensor in sorted(state.server.get("own", {}).items())}
        before = {name: w.clone() for name, w in state.weights.items()}
        shown = replace(uploads, nonfinite=0, unclipped=None)  # counts of clients, which no noise covers here
        answer = plugins.call(FIELD, self.name, lambda: self.make().aggregate(before, shown, memory, round_))
        if not isinstance(answer, tuple) or [isinstance(each, Mapping) for each in answer] != [True, True]:
            parts = answer if isinstance(answer, tuple) else (answer,)
            said = ", ".join(type(each).__name__ for each in parts)
            raise self._error(f"aggregate gives ({said}), expected (weights, what the record says), two dicts")
        found, words = answer
        try:
            said = json.loads(json.dumps(dict(words), allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise self._error(f"what aggregate says for the round's record: {error}") from None
        after = self.moved(state, {name: self._fit(name, found, w) for name, w in state.weights.items()})
        kept = {name: self._kept(name, tensor) for name, tensor in memory.items()}
        return replace(after, server={**after.server, "own": kept}), {"own": said}

    def _fit(self, name: str, found: Mapping[str, torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        given = found.get(name)
        if not isinstance(given, torch.Tensor) or given.shape != like.shape or given.is_complex():
            said = (
                f"shape {tuple(given.shape)}, {given.dtype}"
                if isinstance(given, torch.Tensor)
                else type(given).__name__
            )
            hint = "" if self.needs_stack else "; single uploads are for who says needs_stack = True"
            raise self._error(f"aggregate gives {said} for {name}, expected shape {tuple(like.shape)}{hint}")
        fitting = plugins.call(
            FIELD, self.name, lambda: given.detach().to(like.device, like.dtype).clone().contiguous()
        )
        if not bool(fitting.isfinite().all()):
            raise self._error(f"aggregate gives NaN or Inf for {name}")
        return fitting

    def _kept(self, name: Any, tensor: Any) -> torch.Tensor:
        if not isinstance(name, str) or not name.isprintable():
            raise self._error(f"memory has the key {name!r}, expected a name")
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.layout != torch.strided
            or str(tensor.dtype).removeprefix("torch.") not in KINDS
        ):
            said = f"{tensor.dtype}, {tensor.layout}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise self._error(f"memory[{name!r}] is {said}, expected a tensor of real numbers")
        return tensor.detach().clone().contiguous()

    def _error(self, words: str) -> UsageError:
        return UsageError(f"{FIELD}: {self.name!r}: {words}")

    def try_out(self, work: Work, clients: int) -> None:
        """Take a round in which every client moved a little at random: a failure shows before anything is written."""
        self.phases(work)
        weights, rng = self.setup.weights, torch.Generator().manual_seed(0)
        rows = {
            name: w + 0.01 * torch.randn(clients, *w.shape, generator=rng).to(w.device, w.dtype)
            for name, w in weights.items()
        }
        stack = Stack(rows, tuple(range(clients)), torch.ones(clients, dtype=torch.float64), 0)
        self.aggregate(State(dict(weights)), self.visible(stack), 1)


def check_same_method(noted: Mapping[str, Any], settings: MethodSettings, where: Path) -> None:
    """Refuse to go on with a run that other code under the same name has made; noted: what `identity` said then."""
    now = settings.identity().get("own_method")
    if now is None:
        return
    if noted.get("own_method") != now:
        raise UsageError(f"{where}: was made with another {settings.name}, whose module has changed since")
    if not now["code"]:
        raise UsageError(f"{where}: whether {settings.name} is still the same cannot be told without its source")

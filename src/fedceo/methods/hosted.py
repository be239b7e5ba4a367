"""How a user's own method, an `OwnMethod`, is found, checked and asked behind the seam of all methods."""

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
from fedceo.mechanisms.uploads import Contribution, Stack, Uploads
from fedceo.methods.base import Method, MethodSettings, Setup, State
from fedceo.methods.own import FREE, OwnMethod
from fedceo.tensors.weights import Weights, repeat, stack

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment
    from fedceo.training.work import Work

FIELD = "method.name"
NUMBER = "a number that is not negative"
EXPECTED = {"only": "a frozenset of parameters' names, or None", "radius": f"{NUMBER}, or None"}
KINDS = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
"""Types of the tensors that `memory` may hold, which are those that a checkpoint can."""


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

    def titled(self, experiment: Experiment) -> str:
        return self.name.partition(":")[2]

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
    def keeps_parts(self) -> bool:
        return bool(self.kind.keep is not OwnMethod.keep)

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
        setup = self.setup
        made: OwnMethod = self._kind(
            settings=self._given,
            clip=setup.clip,
            noise=setup.noise,
            clients=setup.clients,
            step=setup.server.learning_rate,
        )
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

    def for_cohort(self, work: Work, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Work:
        if self._kind.shift is OwnMethod.shift or not clients:
            return work
        shifts = []
        for client in clients:
            found = self._ask("shift", *self._of_client(state, client))
            shifts.append({name: self._fit("shift", name, found, w) for name, w in state.weights.items()})
        return replace(work, shift=stack(shifts))

    def contribution(self, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Contribution:
        sent = super().contribution(state, clients, passes)
        if self._kind.keep is OwnMethod.keep or not clients:
            return sent
        kept = []
        for row, client in enumerate(clients):
            trained = {name: w[row].clone() for name, w in sent.trained.items()}
            weights, *rest = self._of_client(state, client)
            found = self._ask("keep", weights, trained, *rest)
            kept.append({name: self._kept("keep gives", name, tensor) for name, tensor in found.items()})
        shapes = [{name: tensor.shape for name, tensor in each.items()} for each in kept]
        if any(each != shapes[0] for each in shapes):
            raise self._error("keep gives tensors of other names or shapes to some clients than to others")
        return replace(sent, personal=stack(kept))

    def _of_client(self, state: State, client: int) -> tuple[dict[str, torch.Tensor], ...]:
        """Copies of all that code of a client may read: the global model, what it kept, the server's memory."""
        sources: tuple[Weights, ...] = (state.weights, state.personal.get(client, {}), state.server.get("own", {}))
        return tuple({name: tensor.clone() for name, tensor in source.items()} for source in sources)

    def _ask(self, question: str, *given: dict[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        answer = plugins.call(FIELD, self.name, lambda: getattr(self.make(), question)(*given))
        if not isinstance(answer, Mapping):
            raise self._error(f"{question} gives {type(answer).__name__}, expected a dict of tensors")
        return answer

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
        after = self.moved(state, {name: self._fit("aggregate", name, found, w) for name, w in state.weights.items()})
        kept = {name: self._kept("memory has", name, tensor) for name, tensor in memory.items()}
        return replace(after, server={**after.server, "own": kept}), {"own": said}

    def _fit(self, who: str, name: str, found: Mapping[str, torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        given = found.get(name)
        if not isinstance(given, torch.Tensor) or given.shape != like.shape or given.is_complex():
            said = (
                f"shape {tuple(given.shape)}, {given.dtype}"
                if isinstance(given, torch.Tensor)
                else type(given).__name__
            )
            hint = "" if self.needs_stack or who == "shift" else "; single uploads are for who says needs_stack = True"
            raise self._error(f"{who} gives {said} for {name}, expected shape {tuple(like.shape)}{hint}")
        fitting = plugins.call(
            FIELD, self.name, lambda: given.detach().to(like.device, like.dtype).clone().contiguous()
        )
        if not bool(fitting.isfinite().all()):
            raise self._error(f"{who} gives NaN or Inf for {name}")
        return fitting

    def _kept(self, who: str, name: Any, tensor: Any) -> torch.Tensor:
        if not isinstance(name, str) or not name.isprintable():
            raise self._error(f"{who} the key {name!r}, expected a name")
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.layout != torch.strided
            or str(tensor.dtype).removeprefix("torch.") not in KINDS
        ):
            said = f"{tensor.dtype}, {tensor.layout}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise self._error(f"{who.split()[0]}[{name!r}] is {said}, expected a tensor of real numbers")
        return tensor.detach().clone().contiguous()

    def _error(self, words: str) -> UsageError:
        return UsageError(f"{FIELD}: {self.name!r}: {words}")

    def try_out(self, work: Work, clients: int) -> None:
        """Take two rounds in which clients move a little at random: a failure shows before anything is written."""
        self.phases(work)
        weights, rng = self.setup.weights, torch.Generator().manual_seed(0)
        rows = {
            name: w + 0.01 * torch.randn(clients, *w.shape, generator=rng).to(w.device, w.dtype)
            for name, w in weights.items()
        }
        everybody = tuple(range(clients))
        uploads = Stack(rows, everybody, torch.ones(clients, dtype=torch.float64), 0)
        state, begin = State(dict(weights)), repeat(weights, clients)
        for round_ in (1, 2):  # in the second, clients remember the first
            self.for_cohort(work, state, everybody, [begin])
            kept = self.contribution(state, everybody, [begin, rows]).personal
            personal = {client: {name: w[client] for name, w in kept.items()} for client in everybody} if kept else {}
            state, _ = self.aggregate(replace(state, personal=personal), self.visible(uploads), round_)


def check_same_method(noted: Mapping[str, Any], settings: MethodSettings, where: Path) -> None:
    """Refuse to go on with a run that other code under the same name has made; noted: what `identity` said then."""
    now = settings.identity().get("own_method")
    if now is None:
        return
    if noted.get("own_method") != now:
        raise UsageError(f"{where}: was made with another {settings.name}, whose module has changed since")
    if not now["code"]:
        raise UsageError(f"{where}: whether {settings.name} is still the same cannot be told without its source")

"""A method of the user's own, named in an experiment file as "module:Class".

    class TrimmedMean(OwnMethod):
        needs_stack = True  # it must see each client's upload

        class Settings(Settings):
            trim: int = 1

        def aggregate(self, weights, uploads, memory, round_):
            cut = self.settings.trim
            return {name: w.sort(0).values[cut : len(w) - cut].mean(0) for name, w in uploads.weights.items()}, {}

It answers two questions and no others: how local training differs from the experiment's, and what the server makes of
the uploads. Everything else is FedAvg's, so that what leaves a client is the whole model's change since the global one,
clipped and noised (or trained privately, under record privacy) before any code of the user's runs on it, and neither
records nor models of single clients come near that code in any other way. Hence the epsilon needs no word of its
author: who does not need the stack is given nothing but the mean, so the rows of averages hold for whatever it makes of
that; of who needs it only the server's row stands.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedceo.errors import UsageError
from fedceo.experiment import plugins
from fedceo.mechanisms.base import Stack, Uploads
from fedceo.methods.fedavg import FedAvg, Server
from fedceo.methods.method import State, visible_uploads
from fedceo.methods.settings import Own, Settings
from fedceo.tensors.weights import Weights
from fedceo.training.work import Work

FIELD = "method.name"
FREE = ("learning_rate", "momentum", "proximal", "outside", "outside_radius", "radius", "ascent", "only")
"""What of local training a method of one's own may change; the rest is the experiment's, and counted in epsilon."""
NUMBER = "a number that is not negative"
EXPECTED = {"only": "a frozenset of parameters' names, or None", "radius": f"{NUMBER}, or None"}
KINDS = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
}  # fmt: skip
"""What `memory` may hold: all that a checkpoint can."""


class OwnMethod:
    """What a method of one's own is made from: FedAvg until it answers otherwise.

    Attributes:
        needs_stack: whether `aggregate` must see each client's upload, a `Stack`, or their mean alone, a `Mean`.
        settings: the fields of [method] other than `name`, as the inner class Settings knows them.
        clip: C.
        noise: standard deviation of the noise in an entry of an upload, None where there is no user-level noise.

    An object is made anew for every question; what is to be remembered belongs into `memory`.
    """

    needs_stack = False
    Settings = Settings

    def __init__(self, *, settings: Any, clip: float, noise: float | None) -> None:
        self.settings, self.clip, self.noise = settings, clip, noise

    def local(self, work: Work) -> Work:
        """Local training of one round; of `work` the fields in FREE may be replaced (dataclasses.replace)."""
        return work

    def aggregate(
        self, weights: dict[str, Tensor], uploads: Uploads, memory: dict[str, Tensor], round_: int
    ) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
        """The next global model, name -> (...), and what the round's record should say, as JSON knows it.

        Args:
            weights: the global model as it was.
            uploads: `uploads.mean()`, and with needs_stack `uploads.weights`, name -> (m, ...): the clients' models
                after local training, privatised.
            memory: tensors of the method's own by name, empty in the first round; what is in it afterwards is there
                in the next round, in the order of names, and in checkpoints.
            round_: counted from 1.
        """
        return uploads.mean(), {}


class Hosted(FedAvg):
    """One of the user's own, as the rest of the house knows a method; each question is put to an object of its own."""

    def __init__(self, server: Server, settings: Own, make: Callable[[], OwnMethod], names: Iterable[str]) -> None:
        """names: of the model's parameters."""
        super().__init__(server)
        self.name, self.needs_stack, self.make = settings.name, settings.kind.needs_stack, make
        self.names = frozenset(names)

    def phases(self, work: Work) -> Sequence[Work]:
        changed = plugins.call(FIELD, self.name, lambda: self.make().local(work))
        if type(changed) is not Work:
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
        after = self.server.apply(state, {name: self._fit(name, found, w) for name, w in state.weights.items()})
        kept = {name: self._kept(name, tensor) for name, tensor in memory.items()}
        return State(after.weights, after.personal, after.server | {"own": kept}), {"own": said}

    def _fit(self, name: str, found: Mapping[str, Tensor], like: Tensor) -> Tensor:
        given = found.get(name)
        if not isinstance(given, Tensor) or given.shape != like.shape or given.is_complex():
            said = f"shape {tuple(given.shape)}, {given.dtype}" if isinstance(given, Tensor) else type(given).__name__
            hint = "" if self.needs_stack else "; single uploads are for who says needs_stack = True"
            raise self._error(f"aggregate gives {said} for {name}, expected shape {tuple(like.shape)}{hint}")
        fitting = plugins.call(
            FIELD, self.name, lambda: given.detach().to(like.device, like.dtype).clone().contiguous()
        )
        if not bool(fitting.isfinite().all()):
            raise self._error(f"aggregate gives NaN or Inf for {name}")
        return fitting

    def _kept(self, name: Any, tensor: Any) -> Tensor:
        if not isinstance(name, str) or not name.isprintable():
            raise self._error(f"memory has the key {name!r}, expected a name")
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.dtype not in KINDS:
            said = f"{tensor.dtype}, {tensor.layout}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise self._error(f"memory[{name!r}] is {said}, expected a tensor of real numbers")
        return tensor.detach().clone().contiguous()

    def _error(self, words: str) -> UsageError:
        return UsageError(f"{FIELD}: {self.name!r}: {words}")


def make_own(settings: Own, server: Server, clip: float, noise: float | None, names: Iterable[str]) -> Hosted:
    kind = settings.kind
    if not issubclass(kind, OwnMethod):
        raise UsageError(f"{FIELD}: {settings.name!r} is {kind.__name__}, expected a class made from {plugins.BASE}")
    plugins.digest_of_code(kind)  # now, before the file may change
    given = settings.given

    def make() -> OwnMethod:
        made: OwnMethod = kind(settings=given, clip=clip, noise=noise)
        return made

    return Hosted(server, settings, make, names)


def try_out(method: Hosted, weights: Weights, work: Work, clients: int) -> None:
    """A round in which everybody has moved a little at random: what fails in it is said before anything is written."""
    method.phases(work)
    rng = torch.Generator().manual_seed(0)
    rows = {
        name: w + 0.01 * torch.randn(clients, *w.shape, generator=rng).to(w.device, w.dtype)
        for name, w in weights.items()
    }
    stack = Stack(rows, tuple(range(clients)), torch.ones(clients, dtype=torch.float64), 0)
    method.aggregate(State(dict(weights)), visible_uploads(method, stack), 1)


def about_own(settings: Settings) -> dict[str, Any]:
    """What tells a run's method from a later one of the same name; nothing for the library's own."""
    if not isinstance(settings, Own):
        return {}
    return {"own_method": {"code": plugins.digest_of_code(settings.kind), "release": settings.release}}


def check_same_method(noted: Mapping[str, Any], settings: Settings, where: Path) -> None:
    """Refuse to go on with what was made by other code under the same name; noted: `about_own`."""
    if not isinstance(settings, Own):
        return
    now = about_own(settings)["own_method"]
    if noted.get("own_method") != now:
        raise UsageError(f"{where}: was made with another {settings.name}, whose module has changed since")
    if not now["code"]:
        raise UsageError(f"{where}: whether {settings.name} is still the same cannot be told without its source")

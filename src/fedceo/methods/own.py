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
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedceo import own
from fedceo.errors import UsageError
from fedceo.method_settings import Own, Settings
from fedceo.methods.fedavg import FedAvg, Server
from fedceo.methods.method import State, Weights
from fedceo.privacy.mechanisms import Stack, Uploads
from fedceo.training.work import Work

FIELD = "method.name"
FREE = ("learning_rate", "momentum", "proximal", "outside", "outside_radius", "radius", "ascent", "only")
"""What of local training a method of one's own may change; the rest is the experiment's, and counted in epsilon."""


class OwnMethod:
    """What a method of one's own is made from: FedAvg until it answers otherwise.

    Attributes:
        needs_stack: whether `aggregate` must see each client's upload, a `Stack`, or their mean alone, a `Mean`.
        settings: the fields of [method] other than `name`, as the inner class Settings knows them.
        clip: C.
        noise: standard deviation of the noise in an entry of an upload, None where there is no user-level noise.

    An object may be made anew before any round; what is to be remembered belongs into `memory`.
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
                in the next round, and in checkpoints.
            round_: counted from 1.
        """
        return uploads.mean(), {}


class Hosted(FedAvg):
    """One of the user's own, as the rest of the house knows a method."""

    def __init__(self, server: Server, name: str, guest: OwnMethod) -> None:
        super().__init__(server)
        self.name, self.guest = name, guest
        self.needs_stack = bool(type(guest).needs_stack)

    def phases(self, work: Work) -> Sequence[Work]:
        changed = own.call(FIELD, self.name, self.guest.local, work)
        if not isinstance(changed, Work):
            raise self._error(f"local gives {type(changed).__name__}, expected a Work")
        kept = replace(changed, **{name: getattr(work, name) for name in FREE})
        if kept != work:
            other = next(name for name in vars(work) if getattr(kept, name) != getattr(work, name))
            raise self._error(f"local changes {other}, expected no other fields than {', '.join(FREE)}")
        for name in set(FREE) - {"only"}:
            value = getattr(changed, name)
            if value is None and name == "radius":
                continue
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise self._error(f"local gives {value!r} for {name}, expected a number that is not negative")
        return (changed,)

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        memory = {name: tensor.clone() for name, tensor in state.server.get("own", {}).items()}
        before = {name: w.clone() for name, w in state.weights.items()}
        answer = own.call(FIELD, self.name, self.guest.aggregate, before, uploads, memory, round_)
        if not (isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(each, Mapping) for each in answer)):
            raise self._error(f"aggregate gives {type(answer).__name__}, expected (weights, what the record says)")
        found, said = answer
        try:
            json.dumps(said)
        except (TypeError, ValueError) as error:
            raise self._error(f"what aggregate says for the round's record: {error}") from None
        after = self.server.apply(state, {name: self._fit(name, found, w) for name, w in state.weights.items()})
        for name, tensor in memory.items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor):
                raise self._error(f"memory[{name!r}] is {type(tensor).__name__}, expected a tensor by a name")
        kept = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in memory.items()}
        return State(after.weights, after.personal, after.server | {"own": kept}), {"own": dict(said)}

    def _fit(self, name: str, found: Mapping[str, Tensor], like: Tensor) -> Tensor:
        given = found.get(name)
        if not isinstance(given, Tensor) or given.shape != like.shape:
            said = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
            hint = "" if self.needs_stack else "; single uploads are for who says needs_stack = True"
            raise self._error(f"aggregate gives {said} for {name}, expected shape {tuple(like.shape)}{hint}")
        if not bool(given.isfinite().all()):
            raise self._error(f"aggregate gives NaN or Inf for {name}")
        return given.detach().to(like.device, like.dtype).clone(memory_format=torch.contiguous_format)

    def _error(self, words: str) -> UsageError:
        return UsageError(f"{FIELD}: {self.name!r}: {words}")


def make_own(settings: Own, server: Server, clip: float, noise: float | None) -> Hosted:
    kind = settings.kind
    if not issubclass(kind, OwnMethod):
        raise UsageError(f"{FIELD}: {settings.name!r} is {kind.__name__}, expected a class made from {own.BASE}")

    def make() -> OwnMethod:
        made: OwnMethod = kind(settings=settings.given, clip=clip, noise=noise)
        return made

    return Hosted(server, settings.name, own.call(FIELD, settings.name, make))


def try_out(method: Hosted, weights: Weights, work: Work, clients: int) -> None:
    """A round in which nobody has learnt anything: what fails in it is said before anything is written."""
    (changed,) = method.phases(work)
    only = changed.only
    if only is not None and not (isinstance(only, frozenset) and only and only <= set(weights)):
        raise UsageError(f"{FIELD}: {method.name!r}: local gives {only!r} for only, expected a frozenset of parameters")
    rows = {name: w.unsqueeze(0).repeat(clients, *[1] * w.ndim) for name, w in weights.items()}
    stack = Stack(rows, tuple(range(clients)), torch.ones(clients, dtype=torch.float64), 0)
    method.aggregate(State(dict(weights)), stack if method.needs_stack else stack.alone(), 1)


def about_own(settings: Settings) -> dict[str, Any]:
    """What tells a run's method from a later one of the same name; nothing for the library's own."""
    return {"own_method": own.digest_of_code(settings.kind)} if isinstance(settings, Own) else {}


def check_same_method(noted: Mapping[str, Any], settings: Settings, where: Path) -> None:
    """Refuse to go on with what was made by other code under the same name; noted: `about_own`."""
    if isinstance(settings, Own) and noted.get("own_method") != about_own(settings)["own_method"]:
        raise UsageError(f"{where}: was made with another {settings.name}, whose module has changed since")

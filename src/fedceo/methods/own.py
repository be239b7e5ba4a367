"""A method of the user's own, named in an experiment file as "module:Class".

The class is FedAvg with another answer to some of its questions (fedceo.methods.method has them all); its fields in
[method] are those of its inner class `Settings`:

    class TrimmedMean(FedAvg):
        needs_stack = True  # it must see each client's upload

        class Settings(Settings):
            trim: float = 0.1

        def aggregate(self, state, uploads, round_):
            kept = {name: trimmed(w, self.settings.trim) for name, w in uploads.weights.items()}
            return self.server.apply(state, kept), {}

An object of it has `settings`, `server` (what train.server_optimizer says), `clip` (C) and `noise` (the standard
deviation of the noise in an entry of an upload). It is made anew when a run is resumed or the clip moves, so that
whatever it remembers from round to round belongs into the State that it returns.

What it releases is known without a word of its author: who does not need the stack is given nothing but the mean, so
the rows of averages hold for whatever it makes of that; of who needs it, only the server's row stands. Uploads are
clipped and noised before it sees them. Under record privacy its phases may change neither clip, noise nor batches, and
take no more steps than its settings count.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedceo import own
from fedceo.errors import UsageError
from fedceo.method_settings import Own, Settings
from fedceo.methods.fedavg import Server
from fedceo.methods.method import Method, State, Weights
from fedceo.privacy.mechanisms import Stack
from fedceo.training.work import Work

FIELD = "method.name"


def make_own(settings: Own, server: Server, clip: float, noise: float) -> Method:
    method: Any = own.call(FIELD, settings.name, settings.kind, server)
    method.settings, method.clip, method.noise = settings.given, clip, noise
    made: Method = method
    return made


def about_own(settings: Settings) -> dict[str, Any]:
    """What tells a run's method from a later one of the same name; nothing for the library's own."""
    if not isinstance(settings, Own):
        return {}
    code = own.digest_of_code(settings.kind)
    return {"own_method": {"settings": settings.given.model_dump(mode="json"), "code": code}}


def check_same_method(noted: Mapping[str, Any], settings: Settings, where: Path) -> None:
    """Refuse to go on with what was made by other code or other defaults under the same name; noted: `about_own`."""
    if isinstance(settings, Own) and noted.get("own_method") != about_own(settings)["own_method"]:
        raise UsageError(f"{where}: was made with another {settings.name}, whose code or defaults have changed since")


def try_out(settings: Own, method: Method, weights: Weights, work: Work) -> None:
    """A round of two clients who learn nothing: what fails in it is said before anything is written."""
    name, clients = settings.name, (0, 1)

    def take_a_round() -> tuple[State, dict[str, Any]]:
        state = State({key: w.clone() for key, w in weights.items()})
        starts = method.starts(state, clients, 1)
        passes = [starts] * (1 + len(method.phases(work)))
        sent = method.contribution(state, clients, passes)
        stacked = Stack({key: w.clone() for key, w in sent.trained.items()}, clients, torch.ones(2), 0)
        return method.aggregate(state, stacked if method.needs_stack else stacked.alone(), 1)

    if work.record is not None and own.call(FIELD, name, method.statistics, 1) is not None:
        raise UsageError(f"{FIELD}: {name!r} sends statistics of records, which record privacy does not noise")
    check_phases(settings, own.call(FIELD, name, method.phases, work), work)
    answer = own.call(FIELD, name, take_a_round)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], State)):
        raise UsageError(f"{FIELD}: {name!r}: aggregate gives {type(answer).__name__}, expected (State, dict)")
    try:
        json.dumps(answer[1])
    except (TypeError, ValueError) as error:
        raise UsageError(f"{FIELD}: {name!r}: what aggregate says for the round's record: {error}") from None
    for key, w in weights.items():
        found = answer[0].weights.get(key)
        if found is None or found.shape != w.shape:
            shape = "nothing" if found is None else f"shape {tuple(found.shape)}"
            raise UsageError(f"{FIELD}: {name!r}: aggregate gives {shape} for {key}, expected {tuple(w.shape)}")


def check_phases(settings: Own, phases: Sequence[Work], work: Work) -> None:
    """Refuse phases that record privacy's epsilon does not count; work: what the experiment says."""
    if work.record is None:
        return  # what leaves a client is clipped and noised, whatever it did
    for phase in phases:
        if (phase.record, phase.batch_size) != (work.record, work.batch_size):
            raise UsageError(
                f"{FIELD}: {settings.name!r} changes the clip, the noise or the batches of a phase, which the epsilon "
                "of record privacy rests on"
            )
    for batches in (1, 10):  # of an epoch; steps are at most linear in them
        taken = sum(min(phase.epochs * batches, phase.steps or phase.epochs * batches) for phase in phases)
        counted = settings.record_steps(batches, work.epochs)
        if taken > counted:
            raise UsageError(
                f"{FIELD}: {settings.name!r} takes {taken} private steps where an epoch has {batches}, and its "
                f"settings count {counted}; expected Settings.record_steps to say how many"
            )

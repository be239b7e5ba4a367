"""The base class of a user's own method, named in an experiment file as "module:Class".

    class TrimmedMean(OwnMethod):
        needs_stack = True  # it must see each client's upload

        class Settings(MethodSettings):
            trim: int = 1

        def aggregate(self, weights, uploads, memory, round_):
            cut = self.settings.trim
            return {name: w.sort(0).values[cut : len(w) - cut].mean(0) for name, w in uploads.weights.items()}, {}

It answers how local training differs from the experiment's, what a client remembers and makes of that, and what the
server makes of the uploads. Everything else is FedAvg's, so that what leaves a client is the whole model's change since
the global one, clipped and noised (or trained privately, under record-level privacy) before any code of the user's runs
on it. What a client remembers is asked for one client at a time and goes nowhere but into that client's own later
training, whose result is clipped and noised again. Hence the epsilon does not rest on a word of its author: a method
that does not need the stack is given nothing of others but the mean, so that the rows of averages hold for whatever it
makes of it; a method that needs single uploads gets only the server's row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedceo.lazy import torch
from fedceo.mechanisms.uploads import Uploads
from fedceo.methods.base import MethodSettings

if TYPE_CHECKING:
    from fedceo.training.work import Work

FREE = ("learning_rate", "momentum", "proximal", "outside", "outside_radius", "radius", "ascent", "only")
"""Fields of `Work` that a user's own method may change; the others are the experiment's: epsilon counts on them."""


class OwnMethod:
    """The base class of a user's own method: FedAvg until it answers otherwise.

    Attributes:
        needs_stack: whether `aggregate` must see each client's upload, a `Stack`, or their mean alone, a `Mean`.
        settings: the fields of [method] other than `name`, as the inner class Settings knows them.
        clip: C.
        noise: standard deviation of the noise in an entry of an upload, None where there is no user-level noise.
        clients: N.
        step: the server's step, which is in every upload already: start plus `step` times the update.

    An object is made anew for every question; what is to be remembered belongs into `memory`.
    """

    needs_stack = False
    Settings = MethodSettings

    def __init__(self, *, settings: Any, clip: float, noise: float | None, clients: int, step: float) -> None:
        self.settings, self.clip, self.noise, self.clients, self.step = settings, clip, noise, clients, step

    def local(self, work: Work) -> Work:
        """Local training of one round; of `work` the fields in FREE may be replaced (dataclasses.replace)."""
        return work

    def shift(
        self, weights: dict[str, torch.Tensor], kept: dict[str, torch.Tensor], memory: dict[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        """The way that one client goes beside its gradients, in equal parts over its steps: name -> (...).

        Args:
            weights: the global model, from which the client starts.
            kept: what `keep` gave when this client was last in a round, empty before that.
            memory: the server's, as `aggregate` left it, empty in the first round; changes to it are lost.
        """
        return {name: torch.zeros_like(w) for name, w in weights.items()}

    def keep(
        self,
        weights: dict[str, torch.Tensor],
        trained: dict[str, torch.Tensor],
        kept: dict[str, torch.Tensor],
        memory: dict[str, torch.Tensor],
    ) -> Mapping[str, torch.Tensor]:
        """What one client remembers of a round, tensors by name, the same names and shapes for every client.

        trained: the client's model after local training, before any mechanism; the others as in `shift`.
        """
        return {}

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

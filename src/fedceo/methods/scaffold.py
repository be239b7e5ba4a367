"""SCAFFOLD: Karimireddy et al., "Stochastic Controlled Averaging for Federated Learning" (ICML 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedceo.lazy import torch
from fedceo.mechanisms.clipping import clip_updates
from fedceo.mechanisms.uploads import Contribution, Mean, Uploads
from fedceo.methods.base import Method, MethodSettings, State, register
from fedceo.tensors.weights import Weights

if TYPE_CHECKING:
    from fedceo.training.work import Work

CONTROL = "control"
"""The kind of server tensors that hold the control of all."""


class ScaffoldSettings(MethodSettings):
    title: ClassVar[str] = "SCAFFOLD"
    name: Literal["scaffold"] = "scaffold"
    """Karimireddy et al. 2020: every client's steps are corrected by how its own updates differ from the mean update
    (control variates, option II); a client sends its update alone, from which the server makes its control."""

    @property
    def keeps_parts(self) -> bool:
        return True


@register
class Scaffold(Method):
    """Controls are kept as updates: s = -K eta c of the paper, for K steps at the rate eta.

    A round moves client i by s - s_i beside its gradients, and what the gradients made of its update is its next
    control, s_i = Delta_i - (s - s_i). The paper sends the change of c_i beside the update. With option II that change
    is Delta_i - s, so that the server's mean of it is the mean update minus s: it follows from the privatised mean that
    is released anyway, at no further epsilon, where a second noised message would count like a second round. Under
    user-level noise both controls are kept within the clip, as updates are.
    """

    Settings = ScaffoldSettings

    def for_cohort(self, work: Work, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Work:
        return replace(work, shift=self._shifts(state, clients))

    def contribution(self, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Contribution:
        start, trained = passes
        own = {name: trained[name] - start[name] - shift for name, shift in self._shifts(state, clients).items()}
        return Contribution(start, trained, personal=self._within_clip(own))

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        assert isinstance(uploads, Mean)
        share = min(1.0, uploads.divisor / self.setup.clients)
        mean, control = uploads.mean(), self._control(state)
        step = self.setup.server.learning_rate
        moved = {name: s + share * ((mean[name] - state.weights[name]) / step - s) for name, s in control.items()}
        after = self.moved(state, mean)
        bounded = self._within_clip({name: s[None] for name, s in moved.items()})
        return replace(after, server={**after.server, CONTROL: {name: s[0] for name, s in bounded.items()}}), {}

    def _within_clip(self, controls: Weights) -> Weights:
        """(K, ...) controls no longer than the updates that are sent: what is beyond is noise, or never arrives."""
        return controls if self.setup.noise is None else clip_updates(controls, self.setup.clip)

    def _control(self, state: State) -> Weights:
        return state.server.get(CONTROL) or {name: torch.zeros_like(w) for name, w in state.weights.items()}

    def _shifts(self, state: State, clients: Sequence[int]) -> dict[str, torch.Tensor]:
        """s - s_i of each client, with s_i = 0 for who has not been in a round: name -> (K, ...)."""
        own = [state.personal.get(client) for client in clients]
        return {
            name: torch.stack([s if each is None else s - each[name] for each in own]) if own else s[None][:0]
            for name, s in self._control(state).items()
        }

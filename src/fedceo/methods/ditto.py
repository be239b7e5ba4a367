"""Ditto: Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization" (ICML 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedceo.experiment.base import NotNegative
from fedceo.lazy import torch
from fedceo.mechanisms.uploads import Contribution
from fedceo.methods.base import Method, MethodSettings, State, register
from fedceo.methods.mr_mtl import PULLS
from fedceo.tensors.weights import Weights, repeat

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment
    from fedceo.training.work import Work


class DittoSettings(MethodSettings):
    title: ClassVar[str] = "Ditto"
    name: Literal["ditto"] = "ditto"
    """Li et al. 2021: FedAvg, and beside it a model of each client's own that (lambda/2) |v_k - w|^2 pulls to the
    global one; under record privacy both trainings are counted."""
    strength: NotNegative = 0.1
    """lambda: 0 is local training; the larger, the nearer to the global model. Steps need learning rate times lambda
    below 2."""

    @property
    def keeps_parts(self) -> bool:
        return True

    def record_steps(self, batches: int, epochs: int) -> int:
        return 2 * batches * epochs

    def search_space(self, experiment: Experiment) -> dict[str, list[Any]]:
        return super().search_space(experiment) | {"method.strength": PULLS}


@register
class Ditto(Method):
    """A round's second phase goes on with the client's own model, which never leaves it, beside the global one."""

    Settings = DittoSettings

    def phases(self, work: Work) -> Sequence[Work]:
        return work, replace(work, proximal=self.settings.strength, phase=1)

    def phase_start(self, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Weights:
        return passes[0] if len(passes) == 1 else state.models_of(clients)

    def for_cohort(self, work: Work, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Work:
        return replace(work, anchor=repeat(state.weights, len(clients)))

    def contribution(self, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Contribution:
        return Contribution(passes[0], passes[1], personal=passes[2])

    def personal_clients(self, state: State) -> Sequence[int] | None:
        return sorted(state.personal) or None

    def personalise(self, state: State, clients: Sequence[int], round_: int) -> dict[str, torch.Tensor]:
        return state.models_of(clients)

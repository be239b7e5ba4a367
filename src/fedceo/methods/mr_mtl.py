"""MR-MTL: Liu et al., "On Privacy and Personalization in Cross-Silo Federated Learning" (NeurIPS 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedceo.experiment.base import NotNegative
from fedceo.lazy import torch
from fedceo.mechanisms.uploads import Contribution
from fedceo.methods.base import Method, MethodSettings, State, register
from fedceo.tensors.weights import Weights, repeat

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment
    from fedceo.training.work import Work

PULLS = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]


class MRMTLSettings(MethodSettings):
    title: ClassVar[str] = "MR-MTL"
    colour: ClassVar[int | None] = 5
    name: Literal["mr-mtl"] = "mr-mtl"
    """Liu et al. 2022, mean-regularised multi-task learning: every client goes on with a model of its own, which
    (lambda/2) |w_k - mean|^2 pulls to the mean of all."""
    strength: NotNegative = 0.1
    """lambda: 0 is local training; the larger, the nearer to one model for all. Steps need learning rate times lambda
    below 2."""

    @property
    def keeps_parts(self) -> bool:
        return True

    def search_space(self, experiment: Experiment) -> dict[str, list[Any]]:
        return super().search_space(experiment) | {"method.strength": PULLS}


@register
class MRMTL(Method):
    """lambda (w - mean) is added to every gradient, after any noise: it depends on no record.

    A client sends its model as a change of the mean that it was given, so that nothing else of the model it stood at
    leaves it; under record privacy what it sends is the model itself.
    """

    Settings = MRMTLSettings

    def starts(self, state: State, clients: Sequence[int], round_: int) -> dict[str, torch.Tensor]:
        return state.models_of(clients)

    def phases(self, work: Work) -> Sequence[Work]:
        return (replace(work, proximal=work.proximal + self.settings.strength),)

    def for_cohort(self, work: Work, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Work:
        return replace(work, anchor=repeat(state.weights, len(clients)))

    def contribution(self, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Contribution:
        return Contribution(repeat(state.weights, len(clients)), passes[-1], personal=passes[-1])

    def personal_clients(self, state: State) -> Sequence[int] | None:
        return sorted(state.personal) or None

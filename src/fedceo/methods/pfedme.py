"""pFedMe: Dinh et al., "Personalized Federated Learning with Moreau Envelopes" (NeurIPS 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedceo.experiment.base import Positive
from fedceo.lazy import torch
from fedceo.mechanisms.uploads import Contribution
from fedceo.methods.base import Method, MethodSettings, State, register
from fedceo.tensors.weights import Weights

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment
    from fedceo.training.work import Work


class PFedMeSettings(MethodSettings):
    title: ClassVar[str] = "pFedMe"
    name: Literal["pfedme"] = "pfedme"
    """Dinh et al. 2020: in every local epoch a client fits a model theta of its own, which (lambda/2) |theta - w_k|^2
    pulls to its copy w_k of the global one, and then moves that copy a part of the way to theta; the copy is sent."""
    strength: Positive = 1.0
    """lambda: the larger, the nearer are own models to the global one. Steps need learning rate times lambda below
    2."""
    follow: Annotated[float, Field(gt=0.0, le=1.0, strict=True)] = 0.5
    """eta lambda, the part of the way to its own model that a client's copy moves after every epoch."""

    @property
    def keeps_parts(self) -> bool:
        return True

    def search_space(self, experiment: Experiment) -> dict[str, list[Any]]:
        return super().search_space(experiment) | {
            "method.strength": [0.1, 0.3, 1.0, 3.0, 10.0],
            "method.follow": [0.1, 0.3, 1.0],
        }


@register
class PFedMe(Method):
    """Each epoch is a phase, and between two of them the copy follows; own models begin a round at the global one.

    Under record privacy every epoch is one of private steps, as in FedAvg, and the copy is made of nothing but what
    they give. At user level own models stay at home and the copy is clipped and noised like any update.
    """

    Settings = PFedMeSettings

    def phases(self, work: Work) -> Sequence[Work]:
        one = replace(work, epochs=1, proximal=work.proximal + self.settings.strength)
        return tuple(replace(one, phase=epoch) for epoch in range(work.epochs))

    def for_cohort(self, work: Work, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Work:
        return replace(work, anchor=self._copies(passes))

    def contribution(self, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Contribution:
        return Contribution(passes[0], self._copies(passes), personal=passes[-1])

    def personal_clients(self, state: State) -> Sequence[int] | None:
        return sorted(state.personal) or None

    def personalise(self, state: State, clients: Sequence[int], round_: int) -> dict[str, torch.Tensor]:
        return state.models_of(clients)

    def _copies(self, passes: Sequence[Weights]) -> Weights:
        """Each client's copy of the global model after the epochs so far: name -> (K, ...)."""
        copies, *own = passes
        for models in own:
            copies = {name: w + self.settings.follow * (models[name] - w) for name, w in copies.items()}
        return copies

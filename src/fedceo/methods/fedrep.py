"""FedRep: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning" (ICML 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedceo.experiment.base import Count, Positive
from fedceo.lazy import torch
from fedceo.mechanisms.uploads import Contribution
from fedceo.methods.base import Method, MethodSettings, Setup, State, register
from fedceo.methods.heads import check_head, check_shared_layers, kept_parts
from fedceo.tensors.weights import Weights, last_layer, repeat

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment
    from fedceo.training.work import Work


class FedRepSettings(MethodSettings):
    title: ClassVar[str] = "FedRep"
    name: Literal["fedrep"] = "fedrep"
    """Collins et al. 2021: a representation that is shared and a last layer that is each client's own, trained in
    turns: the last layer first, then the representation for it, which alone is sent."""
    head_epochs: Count = 10
    """Epochs on the client's last layer, before the train.local_epochs on the representation."""
    head_learning_rate: Positive | None = None
    """The learning rate of these epochs; left out: train.learning_rate."""

    def record_steps(self, batches: int, epochs: int) -> int:
        return batches * (epochs + self.head_epochs)

    @property
    def keeps_heads(self) -> bool:
        return True

    @property
    def keeps_parts(self) -> bool:
        return True

    def search_space(self, experiment: Experiment) -> dict[str, list[Any]]:
        return super().search_space(experiment) | {"method.head_epochs": [1, 3, 10]}


@register
class FedRep(Method):
    """The client's own last layer is fitted to frozen features, then the features to that layer.

    Attributes:
        head, body: names of the parameters that stay with clients, and of those that are sent.
    """

    Settings: ClassVar[type[MethodSettings]] = FedRepSettings

    def __init__(self, settings: Any = None, setup: Setup | None = None) -> None:
        super().__init__(settings, setup)
        weights = self.setup.weights
        self.head = frozenset(last_layer(weights) if self.settings.keeps_heads else ())
        self.body = frozenset(weights) - self.head

    def check(self, classes: int, takes_tokens: bool) -> None:
        name, weights = self.settings.name, self.setup.weights
        if self.settings.keeps_heads:
            check_shared_layers(name, weights)
        check_head(name, weights, classes)

    def starts(self, state: State, clients: Sequence[int], round_: int) -> dict[str, torch.Tensor]:
        return self.personalise(state, clients, round_)

    def phases(self, work: Work) -> Sequence[Work]:
        epochs, rate = self.settings.head_epochs, self.settings.head_learning_rate or work.learning_rate
        head = replace(work, epochs=epochs, learning_rate=rate, only=self.head, proximal=0.0)
        return head, replace(work, only=self.body, phase=1)

    def contribution(self, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Contribution:
        return Contribution(
            start={name: w for name, w in passes[0].items() if name not in self.head},
            trained={name: w for name, w in passes[-1].items() if name not in self.head},
            personal={name: w for name, w in passes[-1].items() if name in self.head},
        )

    def personal_clients(self, state: State) -> Sequence[int] | None:
        return sorted(state.personal) if self.head else None

    def personalise(self, state: State, clients: Sequence[int], round_: int) -> dict[str, torch.Tensor]:
        return repeat(state.weights, len(clients)) | kept_parts(state, clients, self.head, state.personal)

    def global_model(self, state: State) -> Weights:
        """The shared layers under the mean of the clients' last layers: for comparison, since nobody has it."""
        if not state.personal:
            return state.weights
        heads = [state.personal[client] for client in sorted(state.personal)]  # so that a resumed run adds up the same
        return {**state.weights, **{name: torch.stack([h[name] for h in heads]).mean(0) for name in heads[0]}}

"""FedAvg with a label prior: personal models that differ from the global one by the labels that each client has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedceo.errors import UsageError
from fedceo.experiment.base import NotNegative
from fedceo.experiment.method_table import CountNoise, Counts
from fedceo.lazy import torch
from fedceo.methods.base import Method, MethodSettings, Predict, State, register
from fedceo.methods.counting import check_counts
from fedceo.methods.heads import check_head
from fedceo.tensors.weights import last_layer, repeat

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment

LABEL_COUNTS = "label counts"
"""The name in State.personal of a client's noised label counts, (classes,)."""


class LabelPriorSettings(MethodSettings):
    title: ClassVar[str] = "FedAvg + label prior"
    name: Literal["label-prior"] = "label-prior"
    """FedAvg, and for each client the global model with the logarithms of its label shares added to the outputs; the
    shares are those of counts that each client releases once, with noise that is accounted for."""
    strength: NotNegative = 1.5
    """The factor of the logarithms: 0 is FedAvg, 1 Bayes' rule for a calibrated model; noise calls for more."""
    label_noise: CountNoise = 10.0
    """Standard deviation of the noise on each count of a client's labels; one record moves one count by one."""

    @property
    def counts(self) -> Counts:
        """A record that becomes zero is missing from one count; one in whose place another comes may change two."""
        return Counts("label counts", self.label_noise, 1.0, 2**0.5)

    @property
    def keeps_parts(self) -> bool:
        return True

    def check(self, experiment: Experiment) -> None:
        check_counts(experiment, 'method "label-prior"', "label counts")

    def search_space(self, experiment: Experiment) -> dict[str, list[Any]]:
        return super().search_space(experiment) | {"method.strength": [0.5, 1.0, 1.5, 2.0, 3.0]}


@register
class LabelPrior(Method):
    """The prior moves the bias of the last layer and nothing else; a client that was never in has the global model."""

    Settings = LabelPriorSettings

    def check(self, classes: int, takes_tokens: bool) -> None:
        check_head(self.settings.name, self.setup.weights, classes)
        if len(last_layer(self.setup.weights)) != 2:
            raise UsageError("method.name: label-prior moves the bias of the last layer, and the model's has none")

    def counted(self, state: State, client: int, round_: int, labels: torch.Tensor, predict: Predict) -> torch.Tensor:
        classes = len(self.setup.weights[last_layer(self.setup.weights)[1]])
        return torch.nn.functional.one_hot(labels, classes)

    def told(self, state: State, counts: Mapping[int, torch.Tensor]) -> State:
        return replace(state, personal={**state.personal, **{k: {LABEL_COUNTS: c} for k, c in counts.items()}})

    def personal_clients(self, state: State) -> Sequence[int] | None:
        return sorted(state.personal) or None

    def personalise(self, state: State, clients: Sequence[int], round_: int) -> dict[str, torch.Tensor]:
        models, bias = repeat(state.weights, len(clients)), last_layer(state.weights)[1]
        known = [state.personal[client][LABEL_COUNTS] if client in state.personal else None for client in clients]
        none = torch.zeros_like(state.weights[bias])
        moved = [w + (none if each is None else self.shift(each)) for w, each in zip(models[bias], known, strict=True)]
        return models | ({bias: torch.stack(moved)} if moved else {})

    def shift(self, counts: torch.Tensor) -> torch.Tensor:
        """What is added to the outputs, (classes,), whose mean is zero; one is added to counts cut off at zero."""
        logarithms = (counts.clamp_min(0) + 1).log()
        return float(self.settings.strength) * (logarithms - logarithms.mean())

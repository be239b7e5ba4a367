"""FedAvg with fine-tuning: the last rounds of the budget are spent at home."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedceo.experiment.base import Count
from fedceo.lazy import torch
from fedceo.methods.base import Method, MethodSettings, State, register

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment


class FedAvgFinetuneSettings(MethodSettings):
    title: ClassVar[str] = "FedAvg, fine-tuned"
    name: Literal["fedavg-finetune"] = "fedavg-finetune"
    """FedAvg whose last rounds are spent at home: each client goes on alone from the global model and sends nothing."""
    home_rounds: Count = 5
    """The rounds at the end in which clients fine-tune. They are accounted for like all others: under record privacy
    because they are private steps, at user level as an upper bound, since nothing is sent in them."""

    @property
    def keeps_parts(self) -> bool:
        return True

    @property
    def looks_ahead(self) -> bool:
        return True

    @property
    def refused_by_audit(self) -> str | None:
        return "method.name: fedavg-finetune sends nothing in its last rounds that an audit could look at"

    def check(self, experiment: Experiment) -> None:
        rounds = experiment.train.rounds
        if self.home_rounds >= rounds:
            raise ValueError(f"method.home_rounds: {self.home_rounds}, expected fewer than the {rounds} train.rounds")

    def search_space(self, experiment: Experiment) -> dict[str, list[Any]]:
        rounds = experiment.train.rounds
        homes = sorted({max(1, round(rounds * share)) for share in (0.1, 0.25, 0.5, 0.75, 0.9)})
        return super().search_space(experiment) | {"method.home_rounds": [each for each in homes if each < rounds]}


@register
class FedAvgFinetune(Method):
    """FedAvg up to the last rounds; a client that is in none of these goes on with the global model."""

    Settings = FedAvgFinetuneSettings

    def starts(self, state: State, clients: Sequence[int], round_: int) -> dict[str, torch.Tensor]:
        return state.models_of(clients)

    def stays_home(self, round_: int) -> bool:
        return bool(round_ > self.setup.rounds - self.settings.home_rounds)

    def personal_clients(self, state: State) -> Sequence[int] | None:
        return sorted(state.personal) or None

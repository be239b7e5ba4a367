"""FedNova: Wang et al., "Tackling the Objective Inconsistency Problem" (NeurIPS 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedceo.experiment.base import Positive
from fedceo.methods.base import Method, MethodSettings, register

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment
    from fedceo.training.work import Work


class FedNovaSettings(MethodSettings):
    title: ClassVar[str] = "FedNova"
    name: Literal["fednova"] = "fednova"
    """Wang et al. 2020: every update counts for the same number of steps, so that clients with many records, who take
    more of them, do not pull the model to themselves."""
    steps: Positive = 10.0
    """tau_eff, the steps that every update counts for. In the paper it is the mean over the clients, who would have to
    send their numbers of steps beside their updates."""

    def search_space(self, experiment: Experiment) -> dict[str, list[Any]]:
        return super().search_space(experiment) | {"method.steps": [3.0, 10.0, 30.0, 100.0]}


@register
class FedNova(Method):
    """FedAvg of updates that are divided by the weight of their own steps and multiplied by tau_eff.

    A client scales its update before it is clipped, and nobody is told its number of steps: one vector of norm at most
    C is sent, as in FedAvg, and the epsilon is FedAvg's.
    """

    Settings = FedNovaSettings

    def phases(self, work: Work) -> Sequence[Work]:
        return (replace(work, worth=self.settings.steps),)

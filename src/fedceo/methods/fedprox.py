"""FedProx: Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedceo.experiment.base import NotNegative
from fedceo.methods.base import Method, MethodSettings, register

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment
    from fedceo.training.work import Work


class FedProxSettings(MethodSettings):
    title: ClassVar[str] = "FedProx"
    colour: ClassVar[int | None] = 4
    name: Literal["fedprox"] = "fedprox"
    """Li et al. 2020: (mu/2) |w - w_start|^2 is added to the local loss."""
    mu: NotNegative = 0.01
    """Weight of the proximal term; train.proximal gives any other method one."""

    def search_space(self, experiment: Experiment) -> dict[str, list[Any]]:
        return super().search_space(experiment) | {"method.mu": [0.001, 0.01, 0.1, 0.5, 1.0]}


@register
class FedProx(Method):
    """FedAvg with mu (w - w_start) added to every gradient."""

    Settings = FedProxSettings

    def phases(self, work: Work) -> Sequence[Work]:
        return (replace(work, proximal=work.proximal + self.settings.mu),)

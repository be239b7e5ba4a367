"""DP-FedSAM: Shi et al., "Make Landscape Flatter in Differentially Private Federated Learning" (CVPR 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedceo.experiment.base import NotNegative
from fedceo.methods.base import Method, MethodSettings, register

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment
    from fedceo.training.work import Work


class DPFedSAMSettings(MethodSettings):
    title: ClassVar[str] = "DP-FedSAM"
    colour: ClassVar[int | None] = 6
    name: Literal["dp-fedsam"] = "dp-fedsam"
    """Shi et al. 2023: clients follow the gradient at the worst point nearby (sharpness-aware minimisation). Under
    record privacy the way there is that of the step before, which is noised already."""
    radius: NotNegative = 0.05
    """rho, the distance within which the worst point is looked for."""

    def search_space(self, experiment: Experiment) -> dict[str, list[Any]]:
        return super().search_space(experiment) | {"method.radius": [0.01, 0.05, 0.1, 0.5]}


@register
class DPFedSAM(Method):
    """FedAvg whose gradients are taken at the worst point within a radius."""

    Settings = DPFedSAMSettings

    def phases(self, work: Work) -> Sequence[Work]:
        return (replace(work, ascent=self.settings.radius),)

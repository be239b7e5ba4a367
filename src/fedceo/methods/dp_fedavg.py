"""DP-FedAvg: McMahan et al., "Learning Differentially Private Recurrent Language Models" (ICLR 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from fedceo.methods.base import Method, MethodSettings, register

if TYPE_CHECKING:
    from fedceo.training.work import Work


class DPFedAvgSettings(MethodSettings):
    title: ClassVar[str] = "DP-FedAvg"
    colour: ClassVar[int | None] = 7
    name: Literal["dp-fedavg"] = "dp-fedavg"
    """McMahan et al. 2018: after every local step the model is projected back to within the clip of its start."""


@register
class DPFedAvg(Method):
    """FedAvg whose local steps end within the clip of the start."""

    Settings = DPFedAvgSettings

    def phases(self, work: Work) -> Sequence[Work]:
        return (replace(work, radius=self.setup.clip),)

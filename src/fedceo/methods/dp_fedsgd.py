"""DP-FedSGD: McMahan et al., "Learning Differentially Private Recurrent Language Models" (ICLR 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from fedceo.methods.base import Method, MethodSettings, register

if TYPE_CHECKING:
    from fedceo.training.work import Work


class DPFedSGDSettings(MethodSettings):
    title: ClassVar[str] = "DP-FedSGD"
    name: Literal["dp-fedsgd"] = "dp-fedsgd"
    """McMahan et al. 2018: each client sends one clipped gradient; train.server_learning_rate is the step."""
    batch: Literal["minibatch", "full"] = "minibatch"
    """The records of the gradient. minibatch: train.batch_size of them. full: all of the client's."""

    def record_steps(self, batches: int, epochs: int) -> int:
        return 1

    def record_batches(self, batches: int) -> int:
        return 1 if self.batch == "full" else batches

    @property
    def steps_at_server(self) -> bool:
        return True


@register
class DPFedSGD(Method):
    """FedAvg whose update is minus the gradient of one batch, or of all records."""

    Settings = DPFedSGDSettings

    def phases(self, work: Work) -> Sequence[Work]:
        return (work.one_gradient(of_all=self.settings.batch == "full"),)

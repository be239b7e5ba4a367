"""FedAvg (McMahan et al. 2017); with distributed noise UDP-FedAvg, Algorithm 1 of Li et al. (ICML 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from fedceo.methods.base import Method, MethodSettings, register

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment


class FedAvgSettings(MethodSettings):
    title: ClassVar[str] = "FedAvg"
    colour: ClassVar[int | None] = 1
    name: Literal["fedavg"] = "fedavg"
    """The mean of the clients' models; with privacy.mechanism = "distributed" this is UDP-FedAvg."""

    def titled(self, experiment: Experiment) -> str:
        return "UDP-FedAvg" if experiment.mechanism.noise_in_shares else self.title


@register
class FedAvg(Method):
    """Everybody starts from the global model; the global model becomes the mean of the uploads."""

    Settings = FedAvgSettings

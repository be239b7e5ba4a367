"""FedAvg (McMahan et al. 2017); with distributed noise UDP-FedAvg, Algorithm 1 of Li et al. (ICML 2025)."""

from typing import Literal

from fedceo.methods.base import Method, MethodSettings, register


class FedAvgSettings(MethodSettings):
    name: Literal["fedavg"] = "fedavg"
    """The mean of the clients' models; with privacy.mechanism = "distributed" this is UDP-FedAvg."""


@register
class FedAvg(Method):
    """Everybody starts from the global model; the global model becomes the mean of the uploads."""

    Settings = FedAvgSettings

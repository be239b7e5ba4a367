"""DP-Fed-LS: Liang et al., "Exploring Private Federated Learning with Laplacian Smoothing" (2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedceo.experiment.base import NotNegative
from fedceo.lazy import torch
from fedceo.mechanisms.uploads import Uploads
from fedceo.methods.base import Method, MethodSettings, State, register

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment


class DPFedLSSettings(MethodSettings):
    title: ClassVar[str] = "DP-Fed-LS"
    name: Literal["dp-fed-ls"] = "dp-fed-ls"
    """Liang et al. 2020: the mean update is smoothed along its entries, (I + c L)^-1 with the Laplacian of a ring."""
    coefficient: NotNegative = 1.0
    """c, the strength of the smoothing; 0 leaves the update as it is."""

    def search_space(self, experiment: Experiment) -> dict[str, list[Any]]:
        return super().search_space(experiment) | {"method.coefficient": [0.1, 0.5, 1.0, 2.0]}


@register
class DPFedLS(Method):
    """FedAvg whose mean update, all entries in a row, is smoothed by (I + c L)^-1.

    L is the Laplacian of a ring, so that the inverse is a division in the Fourier domain. It is computed from the mean
    alone and costs no privacy.
    """

    Settings = DPFedLSSettings

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        mean, coefficient = uploads.mean(), self.settings.coefficient
        if coefficient == 0:
            return self.moved(state, mean), {}
        update = torch.cat([(w - state.weights[name]).flatten() for name, w in mean.items()])
        smoothed = iter(torch.split(laplacian_smooth(update, coefficient), [w.numel() for w in mean.values()]))
        return self.moved(state, {n: state.weights[n] + next(smoothed).view_as(w) for n, w in mean.items()}), {}


def laplacian_smooth(vector: torch.Tensor, coefficient: float) -> torch.Tensor:
    """(I + c L)^-1 v with L = 2 I - shift - shift back on a ring; the sum of the entries stays."""
    size = len(vector)
    angles = 2 * torch.pi * torch.arange(size // 2 + 1, device=vector.device, dtype=torch.float64) / size
    divisors = 1 + 2 * coefficient * (1 - angles.cos())
    return torch.fft.irfft(torch.fft.rfft(vector.double()) / divisors, n=size).to(vector.dtype)

"""FedCEO's filters over the client axis of a stack of models, and the thresholds of those that have one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedceo import tensors
from fedceo.lazy import torch
from fedceo.tensors.weights import Weights

if TYPE_CHECKING:
    from fedceo.methods.base import Setup
    from fedceo.methods.fedceo import FedCEOSettings


@dataclass(frozen=True)
class Filter:
    """What a smoothing makes of a stack of models, name -> (K, ...)."""

    settings: FedCEOSettings
    setup: Setup

    def __call__(self, models: Any, round_: int, clients: float, alpha: float = 1.0) -> Any:
        """The smoothed models of a stack; or of one mean in a list, at the threshold of the stack over the clients.

        Args:
            alpha: the part of deviations that "damp" keeps.
        """
        layers = self.settings.layers
        if self.settings.filter == "damp":
            means = {name: w.mean(0).expand_as(w) for name, w in models.items() if w.is_floating_point()}
            return mixed(means, models, alpha, layers)
        folded = tensors.fold(models, layers)
        if self.settings.filter == "threshold":
            divisor = clients if isinstance(models, list) else 1.0
            smoothed = self._truncated(list(folded.values()), round_, clients, divisor)
            return tensors.unfold(dict(zip(folded, smoothed, strict=True)), models)
        of_layers = [w.mean(-1, keepdim=True) for w in folded.values()]
        deviations = [w - mean for w, mean in zip(folded.values(), of_layers, strict=True)]
        kept = self._truncated(deviations, round_, clients)
        filtered = [mean + deviation for mean, deviation in zip(of_layers, kept, strict=True)]
        return tensors.unfold(dict(zip(folded, filtered, strict=True)), models)

    def _truncated(
        self, folded: Sequence[torch.Tensor], round_: int, clients: float, divisor: float = 1.0
    ) -> list[torch.Tensor]:
        thresholds = [self.threshold(w.shape, clients, round_) / divisor for w in folded]
        return (self.setup.smooth or tensors.truncated_tsvds)(folded, thresholds)

    def threshold(self, shape: Sequence[int], clients: float, round_: int) -> float:
        """The threshold of a (d, h, K) tensor; noise alone reaches s sqrt(K) (sqrt(d) + sqrt(h)) in a slice."""
        if self.settings.threshold == "scheduled":
            return self.scheduled(round_)
        noise = self.setup.noise if self.setup.training_noise is None else self.setup.training_noise
        assert noise is not None
        edge = noise * clients**0.5 * (shape[0] ** 0.5 + shape[1] ** 0.5)
        return float(self.settings.kappa * edge)

    def scheduled(self, round_: int) -> float:
        """The paper's threshold, of all layers."""
        return float(self.settings.ratio ** (round_ / self.settings.interval) / (2 * self.settings.strength))


def mixed(mean: Weights, own: Weights, alpha: float, layers: str | list[str]) -> dict[str, torch.Tensor]:
    """The mean plus a part of the way to what is one's own; layers that are not smoothed are one's own as they are.

    No layer is folded, for the filter treats all entries alike.
    """
    chosen = tensors.select_layers([name for name, w in own.items() if w.is_floating_point()], layers)
    return {name: torch.lerp(mean[name], w, alpha) if name in chosen else w for name, w in own.items()}

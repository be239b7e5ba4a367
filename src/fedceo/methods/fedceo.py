"""FedCEO, Algorithm 2 of Li et al., "Clients Collaborate" (ICML 2025).

Every I rounds the m uploads of a layer, in ascending client number, are folded into a (d, h, m) tensor and its singular
values in the Fourier domain of the client axis are soft-thresholded at ratio^(t/I) / (2 strength). The global model is
the mean of the smoothed ones. That mean equals the soft-thresholded mean at threshold / m, so restart = "mean" never
needs a single client's upload; the other restarts do, and hand the smoothed models back to clients.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedceo import config
from fedceo.methods.method import State, repeat, stack
from fedceo.privacy.mechanisms import Mean, Stack, Uploads
from fedceo.tensors import fold, truncated_tsvd, unfold


class FedCEO:
    """The settings are those of the experiment file; restart "own" is the paper's algorithm."""

    def __init__(self, settings: config.FedCEO) -> None:
        self.settings = settings
        self.needs_stack = settings.restart != "mean"

    def smooths(self, round_: int) -> bool:
        return round_ % self.settings.interval == 0

    def starts(self, state: State, clients: Sequence[int], round_: int) -> dict[str, Tensor]:
        """Clients restart from smoothed models in the round after a smoothing, from the global model otherwise."""
        if not state.personal or (round_ - 1) % self.settings.interval != 0:
            return repeat(state.weights, len(clients))
        places = range(len(clients)) if self.settings.restart == "slot" else clients
        return stack([state.personal.get(place, state.weights) for place in places])

    def idle(self, state: State) -> State:
        """Only stored models outlive the round after a smoothing."""
        return State(state.weights, state.personal if self.settings.restart == "stored" else {})

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        stored = state.personal if self.settings.restart == "stored" else {}
        if not self.smooths(round_):
            return State(uploads.mean(), self._remember(stored, uploads)), {"smoothed": False}
        threshold = self.settings.ratio ** (round_ / self.settings.interval) / (2 * self.settings.strength)
        about = {"smoothed": True, "threshold": threshold}
        if self.settings.restart == "mean":
            divisor = uploads.divisor if isinstance(uploads, Mean) else len(uploads.clients)
            return State(self._smooth([uploads.mean()], threshold / divisor)[0]), about
        assert isinstance(uploads, Stack)
        smoothed = self._smooth(uploads.weights, threshold)
        uploads = Stack(smoothed, uploads.clients, uploads.sizes, uploads.nonfinite)
        return State(uploads.mean(), self._remember(stored, uploads, always=True)), about

    def _smooth(self, models: Any, threshold: float) -> Any:
        tensors = fold(models, self.settings.layers)
        return unfold({name: truncated_tsvd(w, threshold) for name, w in tensors.items()}, models)

    def _remember(
        self, stored: dict[int, dict[str, Tensor]], uploads: Uploads, always: bool = False
    ) -> dict[int, dict[str, Tensor]]:
        """The models that clients may restart from; `stored` keeps every client's last one, smoothed or not."""
        if isinstance(uploads, Mean) or (self.settings.restart != "stored" and not always):
            return stored
        places = range(len(uploads.clients)) if self.settings.restart == "slot" else uploads.clients
        latest = {place: {name: w[k].clone() for name, w in uploads.weights.items()} for k, place in enumerate(places)}
        return stored | latest

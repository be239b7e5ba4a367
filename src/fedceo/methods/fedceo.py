"""FedCEO, Algorithm 2 of Li et al., "Clients Collaborate" (ICML 2025).

Every I rounds the m uploads of a layer, in ascending client number, are folded into a (d, h, m) tensor and its singular
values in the Fourier domain of the client axis are soft-thresholded at ratio^(t/I) / (2 strength). The global model is
the mean of the smoothed ones. That mean equals the soft-thresholded mean at threshold / m, so restart = "mean" never
needs a single client's upload; the other restarts do, and hand the smoothed models back to clients.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedceo.mechanisms.base import Mean, Stack, Uploads
from fedceo.methods import settings as method_settings
from fedceo.methods.fedavg import FedAvg
from fedceo.methods.method import State
from fedceo.tensors import fold, truncated_tsvds, unfold
from fedceo.tensors.weights import Weights, repeat, stack


class FedCEO(FedAvg):
    """The settings are those of the experiment file; restart "own" is the paper's algorithm."""

    def __init__(self, settings: method_settings.FedCEO, noise: float = 0.0) -> None:
        """noise: standard deviation of the noise in an entry of an upload, for threshold = "noise"."""
        super().__init__()
        self.settings, self.noise = settings, noise
        self.needs_stack = settings.restart != "mean"
        self.truncate: Callable[[Sequence[Tensor], Sequence[float]], list[Tensor]] = truncated_tsvds

    def smooths(self, round_: int) -> bool:
        return round_ % self.settings.interval == 0

    def _restarts(self, round_: int) -> bool:
        return (round_ - 1) % self.settings.interval == 0

    def starts(self, state: State, clients: Sequence[int], round_: int) -> dict[str, Tensor]:
        """Clients restart from smoothed models in the round after a smoothing, from the global model otherwise."""
        if not state.personal or not self._restarts(round_):
            return repeat(state.weights, len(clients))
        places = range(len(clients)) if self.settings.restart == "slot" else clients
        return stack([state.personal.get(place, state.weights) for place in places])

    def personal_clients(self, state: State) -> Sequence[int] | None:
        if self.settings.restart == "slot" and state.personal:
            return ()  # whose a place is shows with the next cohort
        return sorted(state.personal) or None

    def idle(self, state: State) -> State:
        """Only stored models outlive the round after a smoothing."""
        return State(state.weights, state.personal if self.settings.restart == "stored" else {}, state.server)

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        stored = state.personal if self.settings.restart == "stored" else {}
        server: dict[str, dict[str, Tensor]] = {}
        if self.settings.unseen == "resubmit":
            assert isinstance(uploads, Stack)
            if round_ > 1 and self._restarts(round_):
                uploads = resubmitted(uploads, stored, state.server.get("before", state.weights))
            server = {"before": {name: w[-1].clone() for name, w in uploads.weights.items()}}
        if not self.smooths(round_):
            return State(uploads.mean(), self._remember(stored, uploads), server), {"smoothed": False}
        about = {"smoothed": True} | ({"threshold": self._scheduled(round_)} if self._is_scheduled else {})
        if self.settings.restart == "mean":
            clients = uploads.divisor if isinstance(uploads, Mean) else len(uploads.clients)
            return State(self.smooth([uploads.mean()], round_, clients)[0]), about
        assert isinstance(uploads, Stack)
        smoothed = self.smooth(uploads.weights, round_, len(uploads.clients))
        uploads = replace(uploads, weights=smoothed)
        return State(uploads.mean(), self._remember(stored, uploads, always=True), server), about

    def smooth(self, models: Any, round_: int, clients: float) -> Any:
        """models: a stack, or one mean in a list, whose threshold is that of the stack over the number of clients."""
        tensors = fold(models, self.settings.layers)
        divisor = clients if isinstance(models, list) else 1.0
        thresholds = [self.threshold(w.shape, clients, round_) / divisor for w in tensors.values()]
        smoothed = self.truncate(list(tensors.values()), thresholds)
        return unfold(dict(zip(tensors, smoothed, strict=True)), models)

    @property
    def _is_scheduled(self) -> bool:
        return self.settings.threshold == "scheduled"

    def threshold(self, shape: Sequence[int], clients: float, round_: int) -> float:
        """For a (d, h, K) tensor; noise alone has singular values up to s sqrt(K) (sqrt(d) + sqrt(h)) in a slice."""
        if self._is_scheduled:
            return self._scheduled(round_)
        edge = self.noise * clients**0.5 * (shape[0] ** 0.5 + shape[1] ** 0.5)
        return self.settings.kappa * edge

    def _scheduled(self, round_: int) -> float:
        return self.settings.ratio ** (round_ / self.settings.interval) / (2 * self.settings.strength)

    def _remember(
        self, stored: dict[int, dict[str, Tensor]], uploads: Uploads, always: bool = False
    ) -> dict[int, dict[str, Tensor]]:
        """The models that clients may restart from; `stored` keeps every client's last one, smoothed or not."""
        if isinstance(uploads, Mean) or (self.settings.restart != "stored" and not always):
            return stored
        places = range(len(uploads.clients)) if self.settings.restart == "slot" else uploads.clients
        latest = {place: {name: w[k].clone() for name, w in uploads.weights.items()} for k, place in enumerate(places)}
        return stored | latest


def resubmitted(uploads: Stack, seen: Collection[int], before: Weights) -> Stack:
    """Uploads of clients that were never seen give way to the upload before them, the first one's to `before`."""
    rows = list(range(len(uploads.clients)))
    for k, client in enumerate(uploads.clients):
        if client not in seen:
            rows[k] = rows[k - 1] if k else -1
    given = {name: torch.cat([w, before[name][None]])[rows] for name, w in uploads.weights.items()}
    return replace(uploads, weights=given)

"""FedCEO, Algorithm 2 of Li et al., "Clients Collaborate" (ICML 2025).

Every I rounds the m uploads of a layer, in ascending client number, are folded into a (d, h, m) tensor and its singular
values in the Fourier domain of the client axis are soft-thresholded at ratio^(t/I) / (2 strength). The global model is
the mean of the smoothed ones. That mean equals the soft-thresholded mean at threshold / m, so restart = "mean" never
needs a single client's upload; the other restarts do, and hand the smoothed models back to clients.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from fedceo import tensors
from fedceo.errors import UsageError
from fedceo.experiment.fields import Count, Positive
from fedceo.lazy import torch
from fedceo.mechanisms.uploads import Mean, Stack, Uploads
from fedceo.methods.base import Method, MethodSettings, Setup, State, register
from fedceo.tensors.weights import Weights, repeat, stack

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment

LARGEST_EXPONENT = 700
"""The power of e that is about the largest number of a float."""
STRENGTHS: dict[float, list[Any]] = {
    1.0: [55 + 5 * k for k in range(10)],
    1.5: [0.1, 0.3, 1.0, 3.0, 10.0],
    2.0: [0.01, 0.03, 0.1, 0.3, 1.0],
}
"""The paper's grids of lambda, by noise multiplier."""


class FedCEOSettings(MethodSettings):
    name: Literal["fedceo"] = "fedceo"
    """The truncated t-SVD over the stacked models every `interval` rounds."""
    strength: Positive = 0.6
    """lambda: the threshold is ratio^(t/I) / (2 strength), so a larger strength smooths less."""
    ratio: Annotated[float, Field(ge=1.0, le=2.0, strict=True)] = 1.04
    """vartheta, the growth of the threshold from one smoothing to the next."""
    threshold: Literal["scheduled", "noise"] = "scheduled"
    """scheduled: as above, the paper's. noise: kappa s sqrt(K) (sqrt(d) + sqrt(h)) for a layer of d x h entries, where
    s is the known standard deviation of the noise in an upload: what noise alone would reach."""
    kappa: Positive = 1.0
    """Factor of the threshold "noise"."""
    interval: Count = 10
    """I, rounds between smoothings."""
    restart: Literal["own", "mean", "slot", "stored"] = "own"
    """The model that a client starts from after a smoothing. own: its smoothed model if it was in that cohort, else the
    mean. mean: the mean of the smoothed models, always; this is FedAvg with a soft-thresholded mean. slot: the smoothed
    model of its position in the cohort. stored: at every restart the client's last stored model, however old, as in the
    authors' program."""
    unseen: Literal["train", "resubmit"] = "train"
    """The part of a client without a stored model in a restart from stored models. train: it trains from the global
    model. resubmit: it does not train and sends what the client before it sent, as in the authors' program."""
    layers: str | list[str] = "all"
    """The layers that are smoothed: "all", "last N", or a list of names."""

    @property
    def release(self) -> str:
        return {"mean": "average", "stored": "stored"}.get(self.restart, "personalised")

    @property
    def release_interval(self) -> int | None:
        return None if self.restart == "mean" else self.interval

    def check(self, experiment: Experiment) -> None:
        mechanism = experiment.mechanism
        if self.threshold == "noise" and not mechanism.is_user_level:
            raise ValueError('method.threshold "noise" needs user-level privacy, whose noise in an upload is known')
        if self.threshold == "noise" and experiment.privacy.noise == "banded":
            raise ValueError('method.threshold "noise" is of noise that no other round takes back, not of "banded"')
        if self.unseen == "resubmit" and self.restart != "stored":
            raise ValueError('method.unseen "resubmit" needs method.restart "stored"')
        growth = math.log(self.ratio) * experiment.train.rounds / self.interval
        exponent = max(growth, growth - math.log(2 * self.strength))
        if self.threshold == "scheduled" and exponent > LARGEST_EXPONENT:
            raise ValueError(
                "method.ratio: the threshold ratio^(T/I) / (2 strength) grows beyond the largest number, "
                "expected a smaller ratio or a larger strength"
            )
        if not mechanism.shows_uploads and self.restart != "mean":
            raise ValueError(
                f'method.restart "{self.restart}" needs each client\'s upload, which mechanism '
                f'"{experiment.privacy.mechanism}" does not release; use restart "mean" or mechanism "distributed"'
            )
        if experiment.train.weighting != "equal":
            raise ValueError('method "fedceo" needs train.weighting "equal"')
        if experiment.train.server_optimizer != "sgd":
            raise ValueError('method "fedceo" needs train.server_optimizer "sgd"')

    def search_space(self, experiment: Experiment) -> dict[str, list[Any]]:
        """The paper's grids; intervals after which there is no smoothing at all are left out."""

        def smoothing(intervals: list[int]) -> list[int]:
            return [each for each in intervals if each <= experiment.train.rounds]

        rates = super().search_space(experiment)
        del rates["train.server_optimizer"]  # thresholds are of means, which an optimiser would change
        if self.threshold == "noise":
            return rates | {"method.kappa": [0.1, 0.3, 0.5, 1.0], "method.interval": smoothing([10, 15, 20, 30])}
        sigma = experiment.privacy.noise_multiplier or 1.5
        return rates | {
            "method.strength": STRENGTHS[min(STRENGTHS, key=lambda known: abs(known - sigma))],
            "method.ratio": [1 + k / 100 for k in range(1, 11)] if self.ratio > 1 else [1.0],
            "method.interval": smoothing([10, 15, 20, 25, 30]),
        }


@register
class FedCEO(Method):
    """FedAvg with a smoothing of the stacked models every I rounds; restart "own" is the paper's algorithm."""

    Settings = FedCEOSettings

    def __init__(self, settings: FedCEOSettings | None = None, setup: Setup | None = None) -> None:
        super().__init__(settings, setup)
        self.needs_stack = self.settings.restart != "mean"

    def check(self, classes: int, takes_tokens: bool) -> None:
        try:
            tensors.select_layers(self.setup.weights, self.settings.layers)
        except ValueError as error:
            raise UsageError(f"method.layers: {error}") from None

    def smooths(self, round_: int) -> bool:
        return round_ % self.settings.interval == 0

    def _restarts(self, round_: int) -> bool:
        return (round_ - 1) % self.settings.interval == 0

    def starts(self, state: State, clients: Sequence[int], round_: int) -> dict[str, torch.Tensor]:
        """Clients restart from smoothed models in the round after a smoothing, from the global model otherwise."""
        if not state.personal or not self._restarts(round_):
            return repeat(state.weights, len(clients))
        keys = range(len(clients)) if self.settings.restart == "slot" else clients
        return stack([state.personal.get(key, state.weights) for key in keys])

    def personal_clients(self, state: State) -> Sequence[int] | None:
        if self.settings.restart == "slot" and state.personal:
            return ()  # who takes which slot depends on the next cohort
        return sorted(state.personal) or None

    def idle(self, state: State) -> State:
        """Only stored models outlive the round after a smoothing."""
        return replace(state, personal=self._stored(state))

    def _stored(self, state: State) -> Mapping[int, Weights]:
        return state.personal if self.settings.restart == "stored" else {}

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        stored = self._stored(state)
        server: dict[str, dict[str, torch.Tensor]] = {}
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
        uploads = replace(uploads, weights=self.smooth(uploads.weights, round_, len(uploads.clients)))
        return State(uploads.mean(), self._remember(stored, uploads, always=True), server), about

    def smoothed(self, uploads: Weights, round_: int) -> tuple[Weights, dict[str, float]] | None:
        if not self.smooths(round_):
            return None
        clients = len(next(iter(uploads.values())))
        folded = tensors.fold(uploads, self.settings.layers)
        thresholds = {name: self.threshold(w.shape, clients, round_) for name, w in folded.items()}
        return self.smooth(uploads, round_, clients), thresholds

    def smooth(self, models: Any, round_: int, clients: float) -> Any:
        """Smoothed models of a stack; or of one mean in a list, at the threshold of the stack over the clients."""
        folded = tensors.fold(models, self.settings.layers)
        divisor = clients if isinstance(models, list) else 1.0
        thresholds = [self.threshold(w.shape, clients, round_) / divisor for w in folded.values()]
        truncate = self.setup.smooth or tensors.truncated_tsvds
        smoothed = truncate(list(folded.values()), thresholds)
        return tensors.unfold(dict(zip(folded, smoothed, strict=True)), models)

    @property
    def _is_scheduled(self) -> bool:
        return self.settings.threshold == "scheduled"

    def threshold(self, shape: Sequence[int], clients: float, round_: int) -> float:
        """The threshold of a (d, h, K) tensor; noise alone reaches s sqrt(K) (sqrt(d) + sqrt(h)) in a slice."""
        if self._is_scheduled:
            return self._scheduled(round_)
        assert self.setup.noise is not None
        edge = self.setup.noise * clients**0.5 * (shape[0] ** 0.5 + shape[1] ** 0.5)
        return float(self.settings.kappa * edge)

    def _scheduled(self, round_: int) -> float:
        return float(self.settings.ratio ** (round_ / self.settings.interval) / (2 * self.settings.strength))

    def _remember(self, stored: Mapping[int, Weights], uploads: Uploads, always: bool = False) -> dict[int, Weights]:
        """The models that clients may restart from; `stored` keeps every client's last one, smoothed or not."""
        if isinstance(uploads, Mean) or (self.settings.restart != "stored" and not always):
            return dict(stored)
        keys = range(len(uploads.clients)) if self.settings.restart == "slot" else uploads.clients
        latest = {key: {name: w[k].clone() for name, w in uploads.weights.items()} for k, key in enumerate(keys)}
        return {**stored, **latest}


def resubmitted(uploads: Stack, seen: Collection[int], before: Weights) -> Stack:
    """Uploads of clients that were never seen give way to the upload before them, the first one's to `before`."""
    rows = list(range(len(uploads.clients)))
    for k, client in enumerate(uploads.clients):
        if client not in seen:
            rows[k] = rows[k - 1] if k else -1
    given = {name: torch.cat([w, before[name][None]])[rows] for name, w in uploads.weights.items()}
    return replace(uploads, weights=given)

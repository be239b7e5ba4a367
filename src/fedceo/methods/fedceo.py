"""FedCEO, Algorithm 2 of Li et al., "Clients Collaborate" (ICML 2025).

Every I rounds the m uploads of a layer, in ascending client number, are folded into a (d, h, m) tensor and its singular
values in the Fourier domain of the client axis are soft-thresholded at ratio^(t/I) / (2 strength). The global model is
the mean of the smoothed ones. That mean equals the soft-thresholded mean at threshold / m, so restart = "mean" never
needs a single client's upload; the other restarts do, and hand the smoothed models back to clients.

The other filters keep the zero frequency of the client axis, the mean of the stack, as it is, and work on what is left,
each client's deviation from it: "damp" makes deviations smaller, "spare-mean" soft-thresholds them. How much smaller,
clients may vote on, with votes that are noised and accounted for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fedceo import tensors
from fedceo.errors import UsageError
from fedceo.experiment.base import Count, Positive
from fedceo.experiment.method_table import CountNoise, Counts
from fedceo.lazy import torch
from fedceo.mechanisms.uploads import Mean, Stack, Uploads
from fedceo.methods.base import Method, MethodSettings, Predict, Setup, State, register
from fedceo.methods.filters import Filter, mixed
from fedceo.methods.memory import averaged_uploads, last_uploads, resubmitted
from fedceo.methods.voting import ALPHAS, VOTES, check_votes, counts_for_votes, elected_in, votes_of, with_votes
from fedceo.tensors.weights import Weights, repeat

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment

DEFAULT_ALPHA = 0.75
"""The alpha of models that are handed out before clients have voted on it, too."""
LARGEST_EXPONENT = 700
"""The power of e that is about the largest number of a float."""
STRENGTHS: dict[float, list[Any]] = {
    1.0: [55 + 5 * k for k in range(10)],
    1.5: [0.1, 0.3, 1.0, 3.0, 10.0],
    2.0: [0.01, 0.03, 0.1, 0.3, 1.0],
}
"""The paper's grids of lambda, by noise multiplier."""


class FedCEOSettings(MethodSettings):
    title: ClassVar[str] = "FedCEO"
    colour: ClassVar[int | None] = 0
    name: Literal["fedceo"] = "fedceo"
    """The truncated t-SVD over the stacked models every `interval` rounds."""
    strength: Positive = 0.6
    """lambda: the threshold is ratio^(t/I) / (2 strength), so a larger strength smooths less."""
    ratio: Annotated[float, Field(ge=1.0, le=2.0, strict=True)] = 1.04
    """vartheta, the growth of the threshold from one smoothing to the next."""
    threshold: Literal["scheduled", "noise"] = "scheduled"
    """scheduled: as above, the paper's. noise: kappa s sqrt(K) (sqrt(d) + sqrt(h)) for a layer of d x h entries, where
    s is the known standard deviation of the noise in an upload, under record privacy that of a round's local training:
    what noise alone would reach."""
    kappa: Positive = 1.0
    """Factor of the threshold "noise"."""
    filter: Literal["threshold", "damp", "spare-mean"] = "threshold"
    """The smoothing. threshold: the paper's, of all frequencies of the client axis. damp: the zero frequency, which is
    the mean, is kept and the others are multiplied by alpha. spare-mean: the zero frequency is kept and the others have
    the threshold. Every client of the stack has the model that the filter makes of its own."""
    alpha: float | Literal["voted"] = DEFAULT_ALPHA
    """Factor of a client's deviation from the mean, 0 to 1, for filter "damp" and restart "interpolated". The default
    was near the best in silos with label shares of their own; for writers, with few records of many classes, 0.1 was
    better (docs/collaboration.md). "voted": in the last round every client counts for each of six values how many of
    its own records its model of the round before would get right, and releases the counts with noise that its epsilon
    includes; their sum decides for all. Until then it is the default."""
    vote_noise: CountNoise = 15.0
    """alpha "voted": standard deviation of the noise on each count of a client, which one record moves by up to 1.22 in
    Euclidean length."""
    memory: Literal["cohort", "all", "mean"] = "cohort"
    """The uploads that are smoothed together. cohort: those of the round. all: the last upload of every client so far,
    so that everybody who was ever seen has a personal model; the mean at a smoothing is that of the uploads smoothed.
    mean: for every client so far the mean of the round plus the mean of the client's deviations in all its rounds, in
    which noise averages out; with restart "mean", so that a deviation is of one round of training."""
    interval: Count = 10
    """I, rounds between smoothings; above train.rounds there is none."""
    restart: Literal["own", "interpolated", "mean", "slot", "stored"] = "own"
    """The model that a client starts from after a smoothing. own: its smoothed model if it was in that cohort, else the
    mean. interpolated: the mean plus alpha times the way to its smoothed model. mean: the mean of the smoothed models,
    always; with filter "threshold" over the cohort this is FedAvg with a soft-thresholded mean, and nobody has a model
    of its own. slot: the smoothed model of its position in the cohort. stored: at every restart the client's last
    stored model, however old, as in the authors' program."""
    unseen: Literal["train", "resubmit"] = "train"
    """The part of a client without a stored model in a restart from stored models. train: it trains from the global
    model. resubmit: it does not train and sends what the client before it sent, as in the authors' program."""
    layers: str | list[str] = "all"
    """The layers that are smoothed: "all", "last N", or a list of names."""

    later_fields: ClassVar[tuple[str, ...]] = ("filter", "alpha", "memory", "vote_noise")

    @field_validator("alpha", mode="before")
    @classmethod
    def _is_a_part(cls, alpha: Any) -> Any:
        is_number = isinstance(alpha, (int, float)) and not isinstance(alpha, bool)
        if alpha != "voted" and not (is_number and 0 <= alpha <= 1):
            raise ValueError('expected a number from 0 to 1, or "voted"')
        return alpha

    @model_validator(mode="after")
    def forget_unused_alpha(self) -> FedCEOSettings:
        """Experiments that do the same are the same: what nothing reads of alpha becomes the default."""
        if self.alpha == "voted" and self.filter != "damp":
            raise ValueError(f'filter "{self.filter}" has no alpha to vote on, expected "damp"')
        if self.filter != "damp" and self.restart != "interpolated":
            self.__dict__["alpha"] = DEFAULT_ALPHA
        if self.alpha != "voted":
            self.__dict__["vote_noise"] = type(self).model_fields["vote_noise"].default
        return self

    @property
    def counts(self) -> Counts | None:
        return counts_for_votes(self.vote_noise) if self.alpha == "voted" else None

    @property
    def elects(self) -> str | None:
        return "alpha" if self.alpha == "voted" else None

    @property
    def has_personal_models(self) -> bool:
        """Whether clients are handed models that are made from single uploads."""
        return self.restart != "mean" or self.filter != "threshold" or self.memory != "cohort"

    @property
    def release(self) -> str:
        if not self.has_personal_models:
            return "average"
        return "stored" if self.restart == "stored" or self.memory != "cohort" else "personalised"

    @property
    def release_interval(self) -> int | None:
        return self.interval if self.has_personal_models else None

    def check(self, experiment: Experiment) -> None:
        mechanism = experiment.mechanism
        if self.threshold == "noise" and not mechanism.adds_noise:
            raise ValueError(f'method.threshold "noise": mechanism "{experiment.privacy.mechanism}" adds no noise')
        if self.threshold == "noise" and mechanism.trains_privately and experiment.train.schedule != "constant":
            raise ValueError(
                f'train.schedule: "{experiment.train.schedule}", expected "constant" for method.threshold "noise": '
                "the noise of an upload follows the learning rate here"
            )
        if self.threshold == "noise" and experiment.privacy.noise == "banded":
            raise ValueError('method.threshold "noise" is of noise that no other round takes back, not of "banded"')
        if self.memory == "all" and self.restart in ("slot", "stored"):
            raise ValueError(
                f'method.restart "{self.restart}" needs method.memory "cohort"; with "all" every client seen has a '
                'model of its own, from which restart "own" starts'
            )
        if self.memory == "mean" and self.restart != "mean":
            raise ValueError(f'method.restart "{self.restart}", expected "mean" with method.memory "mean"')
        if self.alpha == "voted":
            check_votes(self, experiment)
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
        if not mechanism.shows_uploads and self.has_personal_models:
            raise ValueError(
                f'method.filter "{self.filter}" with memory "{self.memory}" needs each client\'s upload, which '
                f'mechanism "{experiment.privacy.mechanism}" does not release; use mechanism "distributed" or "record"'
            )
        if experiment.train.weighting != "equal":
            raise ValueError('method "fedceo" needs train.weighting "equal"')
        if experiment.train.server_optimizer != "sgd":
            raise ValueError(
                f'method "fedceo" needs train.server_optimizer "sgd", got "{experiment.train.server_optimizer}"'
            )

    def search_space(self, experiment: Experiment) -> dict[str, list[Any]]:
        """The paper's grids; intervals after which there is no smoothing at all are left out."""

        def smoothing(intervals: list[int]) -> dict[str, list[Any]]:
            found = [each for each in intervals if each <= experiment.train.rounds]
            return {"method.interval": found} if found else {}

        rates = super().search_space(experiment)
        del rates["train.server_optimizer"]  # thresholds are of means, which an optimiser would change
        if self.filter == "damp" and self.alpha == "voted":
            return rates
        if self.filter == "damp":
            return rates | {"method.alpha": [0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9]}
        if self.threshold == "noise":
            return rates | {"method.kappa": [0.1, 0.3, 0.5, 1.0], **smoothing([10, 15, 20, 30])}
        sigma = experiment.privacy.noise_multiplier or 1.5
        return rates | {
            "method.strength": STRENGTHS[min(STRENGTHS, key=lambda known: abs(known - sigma))],
            "method.ratio": [1 + k / 100 for k in range(1, 11)] if self.ratio > 1 else [1.0],
            **smoothing([10, 15, 20, 25, 30]),
        }


@register
class FedCEO(Method):
    """FedAvg with a smoothing of the stacked models every I rounds; restart "own" is the paper's algorithm."""

    Settings = FedCEOSettings

    def __init__(self, settings: FedCEOSettings | None = None, setup: Setup | None = None) -> None:
        super().__init__(settings, setup)
        self.needs_stack = self.settings.has_personal_models
        self.filter = Filter(self.settings, self.setup)

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
        restart = self.settings.restart
        if not state.personal or not self._restarts(round_) or restart == "mean":
            return repeat(state.weights, len(clients))
        own = state.models_of(range(len(clients)) if restart == "slot" else clients)
        if restart != "interpolated":
            return own
        return {name: torch.lerp(state.weights[name].expand_as(w), w, self.settings.alpha) for name, w in own.items()}

    def personalise(self, state: State, clients: Sequence[int], round_: int) -> dict[str, torch.Tensor]:
        if self.settings.restart in ("slot", "stored"):
            return super().personalise(state, clients, round_)
        return state.models_of(clients)

    def counted(
        self, state: State, client: int, round_: int, labels: torch.Tensor, predict: Predict
    ) -> torch.Tensor | None:
        """The votes of a client's records on its model of the round before, in the last round."""
        if not self._votes_in(round_) or client not in state.personal:
            return None
        own = state.personal[client]  # with the default alpha
        moved = [mixed(state.weights, own, alpha / DEFAULT_ALPHA, self.settings.layers) for alpha in ALPHAS]
        return votes_of(torch.stack([predict(model) == labels for model in moved], 1))

    def told(self, state: State, counts: Mapping[int, torch.Tensor]) -> State:
        return with_votes(state, counts)

    def _votes_in(self, round_: int) -> bool:
        return self.settings.alpha == "voted" and round_ == self.setup.rounds

    def _alpha(self, state: State) -> float:
        """The alpha of a round, on which clients may have voted in it."""
        if self.settings.alpha != "voted":
            return float(self.settings.alpha)
        noise = 0.0 if self.setup.training_noise is None else self.settings.vote_noise
        return elected_in(state, noise, DEFAULT_ALPHA)

    def personal_clients(self, state: State) -> Sequence[int] | None:
        if self.settings.restart == "slot" and state.personal:
            return ()  # who takes which slot depends on the next cohort
        return sorted(state.personal) or None

    def idle(self, state: State) -> State:
        """Only stored models, and those of a memory beyond the cohort, outlive the round after a smoothing."""
        return replace(state, personal=self._stored(state))

    def _stored(self, state: State) -> Mapping[int, Weights]:
        return state.personal if self.settings.release == "stored" else {}

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        stored = self._stored(state)
        server: dict[str, dict[str, torch.Tensor]] = {}
        if self.settings.unseen == "resubmit":
            assert isinstance(uploads, Stack)
            if round_ > 1 and self._restarts(round_):
                uploads = resubmitted(uploads, stored, state.server.get("before", state.weights))
            server = {"before": {name: w[-1].clone() for name, w in uploads.weights.items()}}
        filtered = uploads
        if self.settings.memory == "all":
            assert isinstance(uploads, Stack)
            filtered = last_uploads(state, uploads)
            seen = torch.tensor(filtered.clients, dtype=torch.int64)
            server = {"uploads": dict(filtered.weights), "seen": {"clients": seen}}
        elif self.settings.memory == "mean":
            assert isinstance(uploads, Stack)
            filtered, server = averaged_uploads(state, uploads)
        if not self.smooths(round_):
            return State(uploads.mean(), self._remember(stored, uploads), server), {"smoothed": False}
        has_one_threshold = self.settings.threshold == "scheduled" and self.settings.filter != "damp"
        about = {"smoothed": True} | ({"threshold": self.filter.scheduled(round_)} if has_one_threshold else {})
        alpha = self._alpha(state)
        about |= {"alpha": alpha} if VOTES in state.server else {}
        if not self.needs_stack:
            clients = uploads.divisor if isinstance(uploads, Mean) else len(uploads.clients)
            return State(self.filter([uploads.mean()], round_, clients)[0]), about
        assert isinstance(filtered, Stack)
        filtered = replace(filtered, weights=self.filter(filtered.weights, round_, len(filtered.clients), alpha))
        return State(filtered.mean(), self._remember(stored, filtered, always=True), server), about

    def smoothed(self, uploads: Weights, round_: int) -> tuple[Weights, dict[str, float]] | None:
        by_more = self.settings.memory != "cohort" or self._votes_in(round_)  # than these uploads
        if not self.smooths(round_) or by_more:
            return None
        clients = len(next(iter(uploads.values())))
        folded = tensors.fold(uploads, self.settings.layers) if self.settings.filter != "damp" else {}
        thresholds = {name: self.filter.threshold(w.shape, clients, round_) for name, w in folded.items()}
        return self.filter(uploads, round_, clients, self._alpha(State({}))), thresholds

    def _remember(self, stored: Mapping[int, Weights], uploads: Uploads, always: bool = False) -> dict[int, Weights]:
        """The models that clients may restart from; `stored` keeps every client's last one, smoothed or not."""
        if isinstance(uploads, Mean) or (self.settings.restart != "stored" and not always):
            return dict(stored)
        keys = range(len(uploads.clients)) if self.settings.restart == "slot" else uploads.clients
        latest = {key: {name: w[k].clone() for name, w in uploads.weights.items()} for k, key in enumerate(keys)}
        return {**stored, **latest}

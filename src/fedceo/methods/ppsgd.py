"""PPSGD: Bietti et al., "Personalization Improves Privacy-Accuracy Tradeoffs in Federated Learning" (ICML 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedceo.experiment.base import Positive
from fedceo.lazy import torch
from fedceo.mechanisms.uploads import Contribution
from fedceo.methods.base import Method, MethodSettings, Setup, State, register
from fedceo.methods.heads import check_head
from fedceo.tensors.weights import Weights, last_layer, repeat

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment
    from fedceo.training.work import Work


class PPSGDSettings(MethodSettings):
    title: ClassVar[str] = "PPSGD"
    colour: ClassVar[int | None] = 2
    name: Literal["ppsgd"] = "ppsgd"
    """Bietti et al. 2022: every client adds an offset of its own to the last layer, which is never sent."""
    form: Literal["gradient", "averaging"] = "averaging"
    """gradient: one clipped gradient a round, as in the paper. averaging: E epochs a round, as FedAvg does."""
    alpha: Annotated[float, Field(ge=0.0, strict=True)] = 1.0
    """gradient: shared against personal step. Up to 1 the pair is (alpha eta, eta), above 1 (eta, eta / alpha), with
    eta = train.server_learning_rate; infinity is the global model alone, 0 local models alone."""
    personal_epochs: Annotated[int, Field(ge=0, strict=True)] = 1
    """averaging: epochs on the offset, before the shared part."""
    personal_learning_rate: Positive | None = None
    """averaging: the learning rate of these epochs; left out: train.learning_rate."""

    def record_steps(self, batches: int, epochs: int) -> int:
        return 1 if self.form == "gradient" else batches * (self.personal_epochs + epochs)

    def server_step(self, rate: float) -> float:
        return rate * min(self.alpha, 1.0) if self.form == "gradient" else rate

    @property
    def steps_at_server(self) -> bool:
        return self.form == "gradient"

    @property
    def keeps_parts(self) -> bool:
        return True

    @property
    def refused_by_audit(self) -> str | None:
        shares_nothing = self.form == "gradient" and self.alpha == 0
        return "method.alpha: 0 shares nothing that an audit could look at" if shares_nothing else None

    def search_space(self, experiment: Experiment) -> dict[str, list[Any]]:
        alphas = {"method.alpha": [0.1, 0.3, 1.0, 3.0, 10.0, 30.0]} if self.form == "gradient" else {}
        return super().search_space(experiment) | alphas


@register
class PPSGD(Method):
    """Logits are features (w + theta_k), with an offset theta_k of the last layer for every client.

    The gradients of w and theta_k are the same, those of the last layer as it is used, so that the models trained here
    have w + theta_k for a last layer and the two are told apart afterwards.
    """

    Settings = PPSGDSettings

    def __init__(self, settings: PPSGDSettings | None = None, setup: Setup | None = None) -> None:
        super().__init__(settings, setup)
        self.head = frozenset(last_layer(self.setup.weights))

    def check(self, classes: int, takes_tokens: bool) -> None:
        check_head(self.settings.name, self.setup.weights, classes)

    def starts(self, state: State, clients: Sequence[int], round_: int) -> dict[str, torch.Tensor]:
        offsets = self._offsets(state, clients)
        return repeat(state.weights, len(clients)) | {
            name: state.weights[name] + offset for name, offset in offsets.items()
        }

    def personal_clients(self, state: State) -> Sequence[int] | None:
        return sorted(state.personal)

    def phases(self, work: Work) -> Sequence[Work]:
        if self.settings.form == "gradient":
            return (work.one_gradient(),)
        epochs, rate = self.settings.personal_epochs, self.settings.personal_learning_rate or work.learning_rate
        if not epochs:
            return (work,)
        offset = replace(work, epochs=epochs, learning_rate=rate, only=self.head, proximal=0.0)
        return offset, replace(work, phase=1)

    def contribution(self, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Contribution:
        shared = repeat(state.weights, len(clients))
        update = {name: w - passes[-2][name] for name, w in passes[-1].items()}
        offsets = self._offsets(state, clients)
        if self.settings.form == "gradient":
            moved = {name: offset + self._personal_rate * update[name] for name, offset in offsets.items()}
        else:
            moved = {name: passes[-2][name] - shared[name] for name in offsets}
        if not any(bool(offset.any()) for offset in moved.values()):
            # without offsets this is FedAvg, to the last bit
            return Contribution(passes[-2], passes[-1], moved)
        return Contribution(shared, {name: shared[name] + u for name, u in update.items()}, moved)

    @property
    def _personal_rate(self) -> float:
        alpha, rate = self.settings.alpha, self.setup.server_learning_rate
        if alpha <= 1:
            return rate
        return 0.0 if alpha == float("inf") else float(rate / alpha)

    def _offsets(self, state: State, clients: Sequence[int]) -> dict[str, torch.Tensor]:
        zeros = {name: torch.zeros_like(state.weights[name]) for name in state.weights if name in self.head}
        offsets = [state.personal.get(client, zeros) for client in clients]
        return {
            name: torch.stack([offset[name] for offset in offsets]) if offsets else zero[None][:0]
            for name, zero in zeros.items()
        }

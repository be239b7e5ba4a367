"""Local training: every client alone, the baseline that collaboration has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from fedceo.lazy import torch
from fedceo.methods.base import Method, MethodSettings, State, register
from fedceo.tensors.weights import Weights, stack

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment


class LocalSettings(MethodSettings):
    title: ClassVar[str] = "Local training"
    name: Literal["local"] = "local"
    """Every client alone: it trains a model of its own with the same budget and sends nothing."""

    @property
    def keeps_parts(self) -> bool:
        return True

    @property
    def refused_by_audit(self) -> str | None:
        return "method.name: local sends nothing that an audit could look at"

    def check(self, experiment: Experiment) -> None:
        if experiment.mechanism.is_user_level:
            raise ValueError(
                f'privacy.mechanism: "{experiment.privacy.mechanism}" hides what a client sends, and method "local" '
                'sends nothing; expected "record" or "none"'
            )


@register
class Local(Method):
    """Everybody goes on with its own model, from the common beginning; nothing leaves a client."""

    Settings = LocalSettings

    def starts(self, state: State, clients: Sequence[int], round_: int) -> dict[str, torch.Tensor]:
        return state.models_of(clients)

    def stays_home(self, round_: int) -> bool:
        return True

    def personal_clients(self, state: State) -> Sequence[int] | None:
        return sorted(state.personal) or None

    def global_model(self, state: State) -> Weights:
        """The mean of the clients' models: for comparison, since nobody has it."""
        if not state.personal:
            return state.weights
        models = stack([state.personal[client] for client in sorted(state.personal)])
        return {name: w.mean(0) for name, w in models.items()}

"""CENTAUR: Shen et al., "Share Your Representation Only" (ICLR 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedceo.errors import UsageError
from fedceo.experiment.base import Count, Positive
from fedceo.lazy import torch
from fedceo.mechanisms.uploads import Uploads
from fedceo.methods.base import MethodSettings, State, Statistics, register
from fedceo.methods.fedrep import FedRep
from fedceo.tensors.weights import repeat

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment
    from fedceo.training.work import Work


class CentaurSettings(MethodSettings):
    title: ClassVar[str] = "CENTAUR"
    colour: ClassVar[int | None] = 3
    name: Literal["centaur"] = "centaur"
    """Shen et al. 2023: the last layer is each client's own; the layers before it are shared."""
    head_epochs: Annotated[int, Field(ge=0, strict=True)] = 15
    """Epochs on the client's last layer, before the shared layers."""
    head_learning_rate: Positive | None = None
    """The learning rate of these epochs; left out: train.learning_rate."""
    persist_heads: bool = True
    """Whether a client goes on with its last layer from round to round, or begins anew."""
    personal: Literal["head", "none"] = "head"
    """none: nothing is personal, which is FedAvg if head_epochs is 0."""
    initialisation: Literal["random", "power"] = "random"
    """power: the first `power_rounds` rounds train nothing; they are steps of a private power method for the directions
    in which class means differ, clipped, noised and counted like any round, and the first layer begins with these."""
    power_rounds: Count = 5
    """The rounds of initialisation "power"."""

    def record_steps(self, batches: int, epochs: int) -> int:
        return batches * (epochs + (self.head_epochs if self.personal == "head" else 0))

    @property
    def keeps_heads(self) -> bool:
        return self.personal == "head"

    @property
    def keeps_parts(self) -> bool:
        return True

    @property
    def refused_by_audit(self) -> str | None:
        if self.initialisation == "random":
            return None
        return 'method.initialisation: "power" sends statistics, for which there are no canaries'

    def check(self, experiment: Experiment) -> None:
        if self.initialisation == "power" and experiment.mechanism.trains_privately:
            raise ValueError('method.initialisation: "power" sends statistics that record privacy does not cover')


@register
class Centaur(FedRep):
    """FedRep whose last layers may begin anew in every round or not exist, and whose first layer may be found first."""

    Settings = CentaurSettings

    def check(self, classes: int, takes_tokens: bool) -> None:
        super().check(classes, takes_tokens)
        first = next(iter(self.setup.weights.values()))
        if self.settings.initialisation == "power" and (first.ndim != 2 or takes_tokens):
            raise UsageError('method.initialisation: "power" needs a model whose first layer is linear')

    def starts(self, state: State, clients: Sequence[int], round_: int) -> dict[str, torch.Tensor]:
        if self.settings.persist_heads:
            return super().starts(state, clients, round_)
        return repeat(state.weights, len(clients))

    def statistics(self, round_: int) -> Statistics | None:
        powers = self.settings.initialisation == "power" and round_ <= self.settings.power_rounds
        return power_step if powers else None

    def phases(self, work: Work) -> Sequence[Work]:
        if not self.head:
            return (work,)
        return super().phases(work) if self.settings.head_epochs else (replace(work, only=self.body),)

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        if self.statistics(round_) is None:
            return super().aggregate(state, uploads, round_)
        ((name, mean),) = uploads.mean().items()
        basis = torch.linalg.qr(mean.T).Q.T  # rows: directions, as many as the layer has units or inputs
        size = state.weights[name].norm(dim=1).mean()
        rows = state.weights[name].clone()
        rows[: len(basis)] = size * basis
        return replace(state, weights={**state.weights, name: rows}), {"initialisation": True}


def power_step(state: State, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """A step of the power method: B V for the spread B of a client's class means, never formed, and V = W'.

    B = sum over classes c of n_c/n (m_c - m)(m_c - m)', with means m_c of the client's records of class c.
    """
    name, first = next(iter(state.weights.items()))
    records = x.flatten(1)
    centred = records - records.mean(0)
    members = (y[:, None] == torch.unique(y)).to(records.dtype)
    counts = members.sum(0)[:, None]
    means = members.T @ centred / counts
    return {name: (first @ means.T) @ (counts / len(y) * means)}

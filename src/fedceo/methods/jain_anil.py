"""Our extension of Jain et al., "Differentially Private Model Personalization" (NeurIPS 2021), to deep models.

The paper's own linear method is `fedceo.methods.jain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedceo.experiment.base import Count, Positive
from fedceo.experiment.method_table import RATES
from fedceo.lazy import torch
from fedceo.mechanisms.uploads import Uploads
from fedceo.methods.base import MethodSettings, Setup, State, register
from fedceo.methods.fedrep import FedRep
from fedceo.tensors.weights import repeat

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment
    from fedceo.training.work import Work


class JainAnilSettings(MethodSettings):
    title: ClassVar[str] = "Jain ANIL"
    name: Literal["jain-anil"] = "jain-anil"
    """Our extension of Jain et al. 2021 to deep models: the client's last layer is fitted anew in every round, one
    clipped gradient of the layers before it is sent, and the last shared matrix is cut to its largest singular values.
    The linear method of the paper is `fedceo.methods.jain`."""
    rank: Count = 8
    """Singular values kept."""
    head_epochs: Count = 5
    """Epochs on the client's last layer."""
    head_learning_rate: Positive | None = None
    """The learning rate of these epochs; left out: train.learning_rate."""

    def record_steps(self, batches: int, epochs: int) -> int:
        return batches * self.head_epochs + 1

    @property
    def keeps_heads(self) -> bool:
        return True

    @property
    def keeps_parts(self) -> bool:
        return True

    @property
    def steps_at_server(self) -> bool:
        return True

    def search_space(self, experiment: Experiment) -> dict[str, list[Any]]:
        """The last layers are fitted by local steps, whose rate counts beside the server's."""
        return super().search_space(experiment) | {"train.learning_rate": RATES}


@register
class JainAnil(FedRep):
    """Heads fitted anew, one gradient of the rest, a low-rank matrix."""

    Settings = JainAnilSettings

    def __init__(self, settings: JainAnilSettings | None = None, setup: Setup | None = None) -> None:
        super().__init__(settings, setup)
        self.rank = self.settings.rank
        matrices = [name for name, w in self.setup.weights.items() if w.ndim == 2 and name not in self.head]
        self.matrix = matrices[-1] if matrices else None

    def starts(self, state: State, clients: Sequence[int], round_: int) -> dict[str, torch.Tensor]:
        return repeat(state.weights, len(clients))

    def phases(self, work: Work) -> Sequence[Work]:
        head, body = super().phases(work)
        return head, body.one_gradient()

    def aggregate(self, state: State, uploads: Uploads, round_: int) -> tuple[State, dict[str, Any]]:
        state, about = super().aggregate(state, uploads, round_)
        if self.matrix is None:
            return state, about
        u, s, v = torch.linalg.svd(state.weights[self.matrix], full_matrices=False)
        cut = (u[:, : self.rank] * s[: self.rank]) @ v[: self.rank]
        return replace(state, weights={**state.weights, self.matrix: cut}), about

"""BLUR + LUS: Cheng et al., "Differentially Private Federated Learning with Local Regularization and Sparsification"
(CVPR 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedceo.experiment.base import Fraction, NotNegative
from fedceo.lazy import torch
from fedceo.mechanisms.uploads import Contribution
from fedceo.methods.base import Method, MethodSettings, State, register
from fedceo.tensors.weights import Weights, flat

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment
    from fedceo.training.work import Work


class BlurLusSettings(MethodSettings):
    title: ClassVar[str] = "BLUR + LUS"
    name: Literal["blur-lus"] = "blur-lus"
    """Cheng et al. 2022: local updates are kept inside the clip while training (BLUR) and made sparse (LUS)."""
    strength: NotNegative = 0.1
    """lambda of BLUR: (lambda/2) max(0, |w - w_start|^2 - C^2) is added to the local loss."""
    sparsity: Fraction = 0.5
    """c of LUS: share of the update's entries that are set to zero; the noise is on all entries all the same."""
    score: Literal["magnitude", "first-order"] = "magnitude"
    """The entries that stay: those with the largest |update|, or |gradient * update|."""

    def check(self, experiment: Experiment) -> None:
        if experiment.mechanism.trains_privately and self.score != "magnitude":
            raise ValueError('method.score "first-order" would look at the records once more, without noise')

    def search_space(self, experiment: Experiment) -> dict[str, list[Any]]:
        return super().search_space(experiment) | {
            "method.strength": [0.01, 0.1, 0.5, 1.0],
            "method.sparsity": [0.0, 0.3, 0.5, 0.7, 0.9],
        }


@register
class BlurLus(Method):
    """BLUR: lambda (w - w_start) is added to gradients outside the clip's ball. LUS: an update's least entries are
    dropped before it is clipped and noised; the noise is on all of them, so that it does not show."""

    Settings = BlurLusSettings

    def phases(self, work: Work) -> Sequence[Work]:
        trained = replace(work, outside=self.settings.strength, outside_radius=self.setup.clip)
        if self.settings.score == "magnitude" or self.settings.sparsity == 0:
            return (trained,)
        return trained, work.one_gradient(of_all=True)  # shows the gradient at the trained model

    def contribution(self, state: State, clients: Sequence[int], passes: Sequence[Weights]) -> Contribution:
        start, trained = passes[0], passes[1]
        if self.settings.sparsity == 0:
            return Contribution(start, trained)
        update = {name: w - start[name] for name, w in trained.items()}
        scores = {name: u.abs() for name, u in update.items()}
        if len(passes) > 2:
            scores = {name: (u * (passes[2][name] - trained[name])).abs() for name, u in update.items()}
        kept = largest(scores, 1 - self.settings.sparsity)
        return Contribution(start, {name: start[name] + u * kept[name] for name, u in update.items()})


def largest(scores: Weights, share: float) -> dict[str, torch.Tensor]:
    """A mask of that share of each client's entries, over all tensors, with the largest scores: name -> (K, ...)."""
    rows = torch.cat([flat(score) for score in scores.values()], 1)
    count = round(share * rows.shape[1])
    kept = torch.zeros_like(rows, dtype=torch.bool)
    kept.scatter_(1, rows.topk(count, 1).indices, True)
    parts = torch.split(kept, [flat(score).shape[1] for score in scores.values()], 1)
    return {name: part.view_as(score) for (name, score), part in zip(scores.items(), parts, strict=True)}

"""The next token of a sequence, by cross-entropy: language modelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedceo.experiment.registry import TASKS
from fedceo.lazy import torch
from fedceo.tasks.base import Task, reduced, refused
from fedceo.tasks.targets import kind_of

if TYPE_CHECKING:
    from torch import Tensor

    from fedceo.data import Federation

FILLING = -1
"""The target where a sequence has ended."""


@TASKS.register("next-token", "the next token of a sequence: cross-entropy, mean over a record's tokens; perplexity")
class NextToken(Task):
    """Outputs are logits, (records, length, tokens), and targets tokens, (records, length), or -1 for filling."""

    standard_metrics = ("perplexity", "accuracy")

    def prepared(self, federation: Federation) -> Federation:
        if federation.y.is_floating_point() or federation.y.shape != federation.x.shape:
            raise refused("next-token", federation, "texts (data.text_column)", kind_of(federation))
        return federation

    def places(self, federation: Federation) -> tuple[int, ...]:
        return federation.shape

    def standard_loss(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        flat = (outputs.flatten(0, -2), targets.flatten())
        each = torch.nn.functional.cross_entropy(*flat, ignore_index=FILLING, reduction="none").view(targets.shape)
        tokens = (targets != FILLING).sum(-1).clamp_min(1)
        return reduced(each.sum(-1) / tokens, reduction)

"""One label of several a record, by cross-entropy: the task of the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedceo.experiment.registry import TASKS
from fedceo.lazy import torch
from fedceo.tasks.base import Task, refused
from fedceo.tasks.targets import kind_of

if TYPE_CHECKING:
    from torch import Tensor

    from fedceo.data import Federation


@TASKS.register("classification", "one label of several a record: cross-entropy; accuracy")
class Classification(Task):
    """Outputs are logits, (records, classes), and targets labels, (records,)."""

    standard_metrics = ("accuracy",)
    other_metrics = ("f1",)
    has_classes = True

    def prepared(self, federation: Federation) -> Federation:
        if federation.y.ndim != 1 or federation.y.is_floating_point():
            raise refused("classification", federation, "one label a record", kind_of(federation))
        return federation

    def standard_loss(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets, reduction=reduction)

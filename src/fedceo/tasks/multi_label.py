"""Any number of labels a record, each there or not, by binary cross-entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedceo.experiment.registry import TASKS
from fedceo.lazy import torch
from fedceo.tasks.base import Task, reduced, refused
from fedceo.tasks.targets import are_flags, kind_of

if TYPE_CHECKING:
    from torch import Tensor

    from fedceo.data import Federation


@TASKS.register("multi-label", "labels that are there or not: binary cross-entropy, the mean over labels; F1 and AUC")
class MultiLabel(Task):
    """Outputs are logits and targets 0 or 1, (records, labels)."""

    standard_metrics = ("f1", "auc", "accuracy")

    def prepared(self, federation: Federation) -> Federation:
        if not are_flags(federation.y) or not are_flags(federation.test_y):
            found = kind_of(federation) + (" other than 0 and 1" if federation.y.is_floating_point() else "")
            raise refused("multi-label", federation, "a 0 or 1 for every label (data.target_columns)", found)
        return federation

    def standard_loss(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        targets = targets.to(outputs.dtype)
        each = torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        return reduced(each.mean(-1), reduction)

    def derivative(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        losses = outputs.clamp_min(0) - outputs * targets + outputs.abs().neg().exp().log1p()
        return losses.mean(-1), (outputs.sigmoid() - targets) / outputs.shape[-1]

"""One of two labels a record, with one output: multi-label classification with one label."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedceo.experiment.registry import TASKS
from fedceo.tasks.base import refused
from fedceo.tasks.multi_label import MultiLabel
from fedceo.tasks.targets import are_flags, kind_of

if TYPE_CHECKING:
    from fedceo.data import Federation


@TASKS.register("binary", "one of two labels a record, with one output: binary cross-entropy; F1, AUC and accuracy")
class Binary(MultiLabel):
    """Outputs are logits of the second label, (records, 1), and targets 0 or 1, (records, 1)."""

    def prepared(self, federation: Federation) -> Federation:
        y, test_y = federation.y, federation.test_y
        if y.shape[1:] == (1,) and are_flags(y) and are_flags(test_y):
            return federation
        if y.ndim != 1 or federation.classes != 2:
            raise refused("binary", federation, "one of two labels a record", kind_of(federation))
        return replace(federation, y=y[:, None].float(), test_y=test_y[:, None].float(), classes=1)

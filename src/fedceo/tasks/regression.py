"""Numbers, by squared error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedceo.experiment.registry import TASKS
from fedceo.tasks.base import Task, reduced, refused
from fedceo.tasks.targets import kind_of

if TYPE_CHECKING:
    from torch import Tensor

    from fedceo.data import Federation


@TASKS.register("regression", "numbers: squared error, the mean over a record's numbers; RMSE and MAE")
class Regression(Task):
    """Outputs and targets are numbers, (records, targets)."""

    standard_metrics = ("rmse", "mae")

    def prepared(self, federation: Federation) -> Federation:
        if not federation.y.is_floating_point():
            raise refused(
                "regression",
                federation,
                "numbers to predict (data.target_columns, or y of floats)",
                kind_of(federation),
            )
        return federation

    def standard_loss(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        return reduced((outputs - targets).square().mean(-1), reduction)

    def derivative(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        error = outputs - targets
        return error.square().mean(-1), 2 * error / error.shape[-1]

"""The seam of a task: which targets it takes, its loss, and what everybody else must know of it.

A task is one class in one file, registered under the name that task.name gives it:

    @TASKS.register("counts", "numbers of events, by Poisson deviance")
    class Counts(Task):
        standard_metrics = ("mae", "rmse")

        def prepared(self, federation): ...
        def standard_loss(self, outputs, targets, reduction): ...

A record's loss is its own mean over its targets, labels or tokens, so that under DP-SGD one gradient belongs to one
record and clipping bounds what the whole record does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedceo.errors import UsageError
from fedceo.experiment.registry import TASKS
from fedceo.tasks.metrics import METRICS, Metric
from fedceo.tasks.own import OwnLoss, own_metric

if TYPE_CHECKING:
    from torch import Tensor

    from fedceo.data import Federation
    from fedceo.experiment.task_table import Task as TaskSettings

Loss = Callable[["Tensor", "Tensor"], "Tensor"]
"""A function of outputs (records, ...) and targets (records, ...) to (records,) losses."""


@dataclass(frozen=True)
class Task(ABC):
    """A learning problem.

    Attributes:
        metrics: what models are measured by; rounds and settings are chosen by the first.
        own_loss: a loss in the place of the task's, or None.
        standard_metrics: names of the metrics that models are measured by unless task.metrics asks for others.
        other_metrics: names of further ones of the library that fit the task.
        has_classes: whether a record has one label of several, by which records can be told apart in tables.
    """

    metrics: tuple[Metric, ...]
    own_loss: OwnLoss | None = None

    standard_metrics: ClassVar[tuple[str, ...]]
    other_metrics: ClassVar[tuple[str, ...]] = ()
    has_classes: ClassVar[bool] = False

    @abstractmethod
    def prepared(self, federation: Federation) -> Federation:
        """The federation with targets as the loss takes them, and the number of the model's outputs as `classes`.

        It gives a federation that is prepared already back; targets of another kind are refused in one line.
        """

    @abstractmethod
    def standard_loss(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        """The task's own loss, as `loss` says."""

    def loss(self, outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """The records' losses: their "mean", their "sum", or with "none" each of them, (records,)."""
        if self.own_loss is None:
            return self.standard_loss(outputs, targets, reduction)
        return reduced(self.own_loss(outputs, targets), reduction)

    def derivative(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The standard loss and its gradient in closed form, for models that are trained without autograd.

        Args:
            outputs: (..., outputs), and targets likewise, with any axes before the last.

        Returns:
            (...) losses of single records and (..., outputs) their gradients.
        """
        raise NotImplementedError

    @property
    def has_derivative(self) -> bool:
        """Whether the loss is one that `derivative` knows."""
        return self.own_loss is None and type(self).derivative is not Task.derivative

    @property
    def is_cross_entropy(self) -> bool:
        """Whether the loss is the cross-entropy of one label a record, for which engines have code of their own."""
        return self.has_classes and self.own_loss is None

    @property
    def is_by_class(self) -> bool:
        """Whether models are measured by their accuracy alone, which can be told class by class."""
        return self.has_classes and tuple(metric.name for metric in self.metrics) == self.standard_metrics

    @property
    def main(self) -> Metric:
        """The metric that rounds and settings are chosen by."""
        return self.metrics[0]

    def places(self, federation: Federation) -> tuple[int, ...]:
        """The axes of a record's outputs before the last one, which has `classes` entries."""
        return ()

    def identity(self) -> dict[str, str]:
        """What tells a run with code of the user's own from one with later code of the same name."""
        return {} if self.own_loss is None else {"own_loss": self.own_loss.digest}


def make_task(settings: TaskSettings) -> Task:
    """The task that [task] asks for; the user's own loss and metrics are imported here."""
    kind = TASKS[settings.name]
    metrics = tuple(
        own_metric(name) if ":" in name else METRICS[name] for name in settings.metrics or kind.standard_metrics
    )
    return kind(metrics, None if settings.loss is None else OwnLoss(settings.loss))


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """(records,) losses as their mean, their sum or, with "none", themselves."""
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def refused(settings_name: str, federation: Federation, expected: str, found: str) -> UsageError:
    """The error about targets of another kind than a task takes."""
    return UsageError(f'task.name: "{settings_name}" needs {expected}, but {federation.name} has {found}')

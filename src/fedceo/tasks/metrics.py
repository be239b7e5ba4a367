"""Metrics: how well a model does, whether higher is better, and how the number is shown.

A run's records and its result name the metric of the task, `metric`, where it is not the accuracy; its values are
`test_METRIC`, `validation_METRIC` and so on in the records, and its summary is the table of that name in the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedceo.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from fedceo.experiment.task_table import Task as TaskSettings


@dataclass(frozen=True)
class Metric:
    """A number that says how well a model does.

    Attributes:
        name: its key in records and results.
        words: what it is called in tables.
        value: the function of outputs (records, ...) and targets (records, ...); NaN where it is not defined.
        higher_is_better: its direction.
        is_share: whether it lies in 0..1 and is shown in percent.
        moves_by_one_in_n: whether one of n records changes it by at most 1 / n, whatever the record.
    """

    name: str
    words: str
    value: Callable[[Tensor, Tensor], float]
    higher_is_better: bool = True
    is_share: bool = False
    moves_by_one_in_n: bool = False

    @property
    def about(self) -> dict[str, Any]:
        """What a record or a result says of its metric: nothing where it is the accuracy, as there always was."""
        if self.name == "accuracy":
            return {}
        return {"metric": self.name} | ({} if self.higher_is_better else {"lower_is_better": True})

    @property
    def unit(self) -> str:
        return "%" if self.is_share else ""

    @property
    def label(self) -> str:
        """What it is called where values stand without their unit."""
        return f"{self.words}, %" if self.is_share else self.words

    def scaled(self, value: float) -> float:
        """The value in the unit that tables show."""
        return 100 * value if self.is_share else value

    def number(self, value: float | None) -> str:
        """The value as a table shows it, without the unit."""
        return "-" if value is None else self.text(self.scaled(value))

    def text(self, scaled: float) -> str:
        """A value, or a spread of values, that is in the unit that tables show."""
        return f"{scaled:.2f}" if self.is_share else f"{scaled:.4g}"

    def signed(self, scaled: float) -> str:
        """A difference of such values."""
        return f"{scaled:+.2f}" if self.is_share else f"{scaled:+.3g}"

    def apart(self, scaled: float) -> str:
        """How far two such values are apart, without a sign, in words: "0.52 points", or "0.031 in RMSE"."""
        return f"{abs(scaled):.2f} points" if self.is_share else f"{abs(scaled):.3g} in {self.words}"

    def show(self, value: float | None) -> str:
        """The value with its unit."""
        return f"{self.number(value)} {self.unit}".rstrip()

    def score(self, value: float | None) -> float:
        """A number of which the highest is the best; no value is the worst."""
        if value is None:
            return 0.0 if self.is_share else -math.inf
        return value if self.higher_is_better else -value

    def value_of(self, score: float) -> float | None:
        """The value that has a score."""
        return (score if self.higher_is_better else -score) if math.isfinite(score) else None

    def measured(self, outputs: Tensor, targets: Tensor) -> float | None:
        """The value, or None where it is not defined or not finite."""
        value = float(self.value(outputs, targets))
        return value if math.isfinite(value) else None


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of labels, or of tokens, that are predicted right."""
    if targets.is_floating_point():
        return float(((outputs > 0) == (targets > 0.5)).double().mean())
    hits = (outputs.argmax(-1) == targets)[targets >= 0]
    return int(hits.sum()) / max(hits.numel(), 1)


def rmse(outputs: Tensor, targets: Tensor) -> float:
    return math.sqrt(float((outputs.double() - targets).square().mean()))


def mae(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs.double() - targets).abs().mean())


def f1(outputs: Tensor, targets: Tensor) -> float:
    """The F1 of every label, or class, averaged over those that are present or predicted."""
    if targets.is_floating_point():
        predicted, present = outputs > 0, targets > 0.5
    else:
        classes = torch.arange(outputs.shape[-1], device=outputs.device)
        predicted, present = outputs.argmax(-1)[:, None] == classes, targets[:, None] == classes
    hits = (predicted & present).sum(0).double()
    either = (predicted.sum(0) + present.sum(0)).double()
    return float((2 * hits / either)[either > 0].mean())


def auc(outputs: Tensor, targets: Tensor) -> float:
    """The area under the ROC curve of every label, averaged over those with records of both kinds.

    It is the chance that a record with the label has a higher output than one without; ties count half.
    """
    found = []
    for values, present in zip(outputs.T, (targets > 0.5).T, strict=True):
        positive, negative = values[present].sort().values, values[~present].sort().values
        if len(positive) and len(negative):
            below = torch.searchsorted(negative, positive).double()
            up_to = torch.searchsorted(negative, positive, right=True).double()
            found.append(float((below + up_to).mean()) / (2 * len(negative)))
    return sum(found) / len(found) if found else math.nan


def perplexity(outputs: Tensor, targets: Tensor) -> float:
    """e to the mean over all tokens of minus the logarithm of the probability that each was given."""
    flat = (outputs.double().flatten(0, -2), targets.flatten())
    mean = float(torch.nn.functional.cross_entropy(*flat, ignore_index=-1))
    return math.exp(mean) if mean < 700 else math.inf


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", accuracy, is_share=True, moves_by_one_in_n=True),
        Metric("f1", "F1", f1, is_share=True),
        Metric("auc", "AUC", auc, is_share=True),
        Metric("rmse", "RMSE", rmse, higher_is_better=False),
        Metric("mae", "MAE", mae, higher_is_better=False),
        Metric("perplexity", "perplexity", perplexity, higher_is_better=False),
    )
}
"""The library's metrics by name."""


def metric_of(told: Mapping[str, Any]) -> Metric:
    """The metric of the task that a record or a result was made for; the user's own can be shown, and not computed."""
    name = str(told.get("metric", "accuracy"))
    return METRICS.get(name) or Metric(name, name, _not_here, not told.get("lower_is_better", False))


def _not_here(outputs: Tensor, targets: Tensor) -> float:
    raise NotImplementedError("a metric of the user's own is computed by its module alone")


def main_metric(settings: TaskSettings) -> Metric:
    """The metric that rounds and settings are chosen by, of an experiment's [task]."""
    from fedceo.tasks.base import make_task

    return make_task(settings).main


def is_measured(record: Mapping[str, Any]) -> bool:
    """Whether the models of a round were measured."""
    return f"test_{metric_of(record).name}" in record


def summary_of(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table of a result that summarises the metric of its task."""
    table: Mapping[str, Any] = result[metric_of(result).name]
    return table

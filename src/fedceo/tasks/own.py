"""Losses and metrics of the user's own, which experiment files name as "module:callable"."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedceo.errors import UsageError
from fedceo.experiment.plugins import call, digest_of_code, find
from fedceo.tasks.metrics import METRICS, Metric

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class OwnLoss:
    """The user's function of outputs (records, ...) and targets (records, ...) to (records,) losses.

    Attributes:
        name: "module:callable".
    """

    name: str

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._function(outputs, targets)

    @cached_property
    def _function(self) -> Any:
        return _callable("task.loss", self.name)

    @property
    def digest(self) -> str:
        return digest_of_code(self._function)

    def try_out(self, outputs: Tensor, targets: Tensor) -> None:
        """Refuse a function that gives anything else than one loss a record, each of its own record alone.

        Under DP-SGD records are given one by one: a loss that mixes records would mean something else there.
        """
        found = call("task.loss", self.name, self._function, outputs, targets)
        shape = tuple(getattr(found, "shape", ()))
        if shape != (len(outputs),):
            raise UsageError(f"task.loss: {self.name!r} gives shape {shape}, expected ({len(outputs)},), one a record")
        if not found.requires_grad:
            raise UsageError(f"task.loss: {self.name!r} gives losses without a gradient")
        alone = call("task.loss", self.name, self._function, outputs[:1], targets[:1])
        if not bool((alone[0] - found[0]).abs() <= 1e-4 * (1 + found[0].abs())):
            raise UsageError(f"task.loss: {self.name!r} gives a record another loss beside others than alone")


def own_metric(name: str) -> Metric:
    """The user's function of outputs and targets to a number; its `lower_is_better = True` says that lower is."""
    function = _callable("task.metrics", name)
    key = name.partition(":")[2]
    if key in METRICS:
        raise UsageError(f"task.metrics: {name!r} has the name of the library's {key}; choose another")

    def value(outputs: Tensor, targets: Tensor) -> float:
        found = call("task.metrics", name, function, outputs, targets)
        return float(call("task.metrics", name, float, found))

    return Metric(key, key, value, higher_is_better=not getattr(function, "lower_is_better", False))


def _callable(field: str, name: str) -> Any:
    function = find(field, name)
    if not callable(function):
        raise UsageError(
            f"{field}: {name!r} is a {type(function).__name__}, expected a function of outputs and targets"
        )
    return function

"""Metrics of any task: those of the global model, and of clients' own models with their spread over clients.

Where a task has classes and models are measured by their accuracy alone, `Evaluator` says more.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedceo.data import Federation
from fedceo.simulation.evaluation import Evaluator, at_once
from fedceo.tasks import Task

Models = Callable[[], Iterator[tuple[int, Mapping[str, Tensor]]]]
"""A function that goes through clients with their own models."""


class MetricEvaluator:
    """Measures weights on the public test set and on the validation records by a task's metrics."""

    def __init__(
        self, model: nn.Module, federation: Federation, device: torch.device, dtype: torch.dtype, task: Task
    ) -> None:
        self.model, self.federation, self.device, self.dtype, self.task = model, federation, device, dtype, task
        self.about = task.main.about

    def measure(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """The metrics test_METRIC and validation_METRIC for each of the task's, test_loss and validation_loss.

        A number that is not finite, or not defined on these records, is None; so is validation without records.
        """
        data = self.federation
        own = data.x[data.validation], data.y[data.validation]
        found = self._measured(weights, "test", data.test_x, data.test_y)
        return found | self._measured(weights, "validation", *own)

    def measure_shared(
        self, weights: Mapping[str, Tensor], clients: Sequence[int], record: Mapping[str, Any], by_clients: bool
    ) -> dict[str, Any]:
        """The metrics of `measure_own` where all clients use one model; record: that of `measure`."""
        if not self.federation.has_local_test:
            return {}
        name = self.task.main.name
        return self._spread([self._local(weights, k) for k in clients]) | {f"personal_{name}": record[f"test_{name}"]}

    def measure_own(self, models: Models, most: int, by_clients: bool) -> dict[str, Any]:
        """The main metric of clients' own models, each client with equal weight.

        local_METRIC is on their own test records, local_METRIC_worst its mean over the worst tenth of clients, and
        personal_METRIC on the public test set over the first `most`.
        """
        local: list[float | None] = []
        everywhere: list[float] = []
        for number, (client, weights) in enumerate(models()):
            local.append(self._local(weights, client))
            if number < most:
                outputs, _ = self._run(weights, self.federation.test_x, self.federation.test_y)
                value = self.task.main.measured(outputs, self.federation.test_y)
                everywhere += [] if value is None else [value]
        return self._spread(local) | {f"personal_{self.task.main.name}": _mean(everywhere)}

    def _spread(self, values: Sequence[float | None]) -> dict[str, float | None]:
        metric = self.task.main
        known = sorted((value for value in values if value is not None), key=metric.score)
        worst = known[: math.ceil(len(known) / 10)]
        return {f"local_{metric.name}": _mean(known), f"local_{metric.name}_worst": _mean(worst)}

    def _local(self, weights: Mapping[str, Tensor], client: int) -> float | None:
        x, y = self.federation.local_test_records(client)
        return self.task.main.measured(self._run(weights, x, y)[0], y) if len(y) else None

    def _measured(self, weights: Mapping[str, Tensor], where: str, x: Tensor, y: Tensor) -> dict[str, Any]:
        if not len(y):
            return {f"{where}_{metric.name}": None for metric in self.task.metrics} | {f"{where}_loss": None}
        outputs, loss = self._run(weights, x, y)
        found: dict[str, Any] = {f"{where}_{each.name}": each.measured(outputs, y) for each in self.task.metrics}
        return found | {f"{where}_loss": loss}

    @torch.no_grad()
    def _run(self, weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, float | None]:
        """The model's outputs on the CPU, and the mean loss, None where it is not finite."""
        self.model.eval()
        outputs, total = [], 0.0
        size = at_once(self.device)
        for records, targets in zip(torch.split(x, size), torch.split(y, size), strict=True):
            inputs = self.federation.inputs(records.to(self.device), self.dtype)
            outputs.append(functional_call(self.model, dict(weights), (inputs,)).cpu())
            total += float(self.task.loss(outputs[-1].double(), targets, "sum"))
        return torch.cat(outputs), total / len(y) if math.isfinite(total) else None


def make_evaluator(
    model: nn.Module, federation: Federation, device: torch.device, dtype: torch.dtype, task: Task
) -> Evaluator | MetricEvaluator:
    """The evaluator that says most about the task's models."""
    if task.is_by_class:
        return Evaluator(model, federation, device, dtype, task)
    return MetricEvaluator(model, federation, device, dtype, task)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

"""Accuracy and loss of the global model, and accuracy of clients' own models.

G is one global model on the whole public test set. P-loc is each client's own model on that client's own test records,
P-glob the same models on the public test set, P-dist the same on the public test set with each class weighted by its
share of the client's training records, each averaged over clients with equal weight. P-dist asks what P-loc asks, with
all test records in the place of a few.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedceo.data import Federation

CHUNK = 2000
"""Records evaluated at a time."""


class Evaluator:
    """Measures weights on the public test set and on the validation records."""

    def __init__(self, model: nn.Module, federation: Federation, device: torch.device, dtype: torch.dtype) -> None:
        self.model, self.federation, self.device, self.dtype = model, federation, device, dtype

    def measure(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """The metrics test_accuracy (0..1), test_loss, test_accuracy_per_class, validation_accuracy, validation_loss.

        A class without test records has accuracy None; so has validation without records.
        """
        hits, loss = self._run(weights, *self._public)
        out: dict[str, Any] = {
            "test_accuracy": int(hits.sum()) / len(hits),
            "test_loss": loss,
            "test_accuracy_per_class": self._by_class(hits),
            "validation_accuracy": None,
            "validation_loss": None,
        }
        if len(self.federation.validation):
            hits, loss = self._run(weights, *self._validation)
            out |= {"validation_accuracy": int(hits.sum()) / len(hits), "validation_loss": loss}
        return out

    def per_class(self, weights: Mapping[str, Tensor]) -> list[float | None]:
        """Accuracy on the public test records of each class, None for a class without any."""
        return self._by_class(self._run(weights, *self._public)[0])

    def measure_local(self, weights: Mapping[str, Tensor], clients: Sequence[int]) -> float | None:
        """P-loc where all these clients use one model: their records are run together."""
        records = [self.federation.local_test_records(client) for client in clients]
        sizes = [len(y) for _, y in records if len(y)]
        if not sizes:
            return None
        x, y = (torch.cat(part) for part in zip(*records, strict=True))
        of_clients = torch.split(self._run(weights, x, y)[0].double(), sizes)
        return sum(float(hits.mean()) for hits in of_clients) / len(of_clients)

    def measure_personal(self, models: Iterable[tuple[int, Mapping[str, Tensor]]], most: int) -> dict[str, Any]:
        """The metrics local_accuracy (P-loc) over all models given, personal_accuracy (P-glob) and those of P-dist over
        the first `most`.

        Clients without test records of their own do not count for P-loc; a number over no clients is None.
        """
        local: list[float] = []
        everywhere: list[float] = []
        by_class: list[tuple[int, Sequence[float | None]]] = []
        for client, weights in models:
            x, y = self.federation.local_test_records(client)
            if len(y):
                local.append(float(self._run(weights, x, y)[0].double().mean()))
            if len(everywhere) < most:
                hits = self._run(weights, *self._public)[0]
                everywhere.append(float(hits.double().mean()))
                by_class.append((client, self._by_class(hits)))
        return {
            "local_accuracy": sum(local) / len(local) if local else None,
            "personal_accuracy": sum(everywhere) / len(everywhere) if everywhere else None,
        } | self.measure_distribution(by_class)

    def measure_distribution(self, by_class: Iterable[tuple[int, Sequence[float | None]]]) -> dict[str, float | None]:
        """The metrics distribution_accuracy (P-dist) and distribution_accuracy_worst, its mean over the worst tenth.

        Classes without test records do not count, nor do clients that have records of such classes alone.

        Args:
            by_class: clients, each with the accuracy of its model on the test records of every class.
        """
        own = (self._on_own_labels(client, accuracies) for client, accuracies in by_class)
        found = sorted(accuracy for accuracy in own if accuracy is not None)
        worst = found[: math.ceil(len(found) / 10)]
        return {
            "distribution_accuracy": sum(found) / len(found) if found else None,
            "distribution_accuracy_worst": sum(worst) / len(worst) if worst else None,
        }

    def validate_personal(self, models: Iterable[tuple[int, Mapping[str, Tensor]]], most: int) -> float | None:
        """P-dist over the first `most` models, on the validation records in the place of the test set; None without."""
        if not len(self.federation.validation):
            return None
        found, measured, accuracies = [], None, list[float | None]()
        for client, weights in itertools.islice(models, most):
            if weights is not measured:  # one model may be that of many clients
                measured, (hits, _) = weights, self._run(weights, *self._validation)
                accuracies = self._by_class(hits, self._validation[1].cpu())
            found.append((client, accuracies))
        return self.measure_distribution(found)["distribution_accuracy"]

    def _on_own_labels(self, client: int, accuracies: Sequence[float | None]) -> float | None:
        """The mean of the classes' accuracies, weighted as in the client's training records."""
        data = self.federation
        counts = torch.bincount(data.y[data.train[client]], minlength=data.classes).tolist()
        known = [(count, accuracy) for count, accuracy in zip(counts, accuracies, strict=True) if accuracy is not None]
        records = sum(count for count, _ in known)
        return sum(count * accuracy for count, accuracy in known) / records if records else None

    @cached_property
    def _public(self) -> tuple[Tensor, Tensor]:
        """The public test records and labels, on the device: to copy them costs more than a measurement."""
        return self.federation.test_x.to(self.device), self.federation.test_y.to(self.device)

    @cached_property
    def _validation(self) -> tuple[Tensor, Tensor]:
        data = self.federation
        return data.x[data.validation].to(self.device), data.y[data.validation].to(self.device)

    def _by_class(self, hits: Tensor, labels: Tensor | None = None) -> list[float | None]:
        """The accuracy on each class, None for a class without records; labels: those of the test set if left out."""
        labels, classes = self.federation.test_y if labels is None else labels, self.federation.classes
        counts = torch.bincount(labels, minlength=classes).tolist()
        right = torch.bincount(labels[hits], minlength=classes).tolist()
        return [h / c if c else None for h, c in zip(right, counts, strict=True)]

    @torch.no_grad()
    def _run(self, weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, float | None]:
        """A mask of the records that are classified right, and the mean loss, None where it is not finite."""
        self.model.eval()
        hits = []
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        x, y = x.to(self.device), y.to(self.device)
        for records, labels in zip(torch.split(x, CHUNK), torch.split(y, CHUNK), strict=True):
            logits = functional_call(self.model, dict(weights), (self.federation.inputs(records, self.dtype),))
            total += F.cross_entropy(logits.double(), labels, reduction="sum")
            hits.append(logits.argmax(1) == labels)
        loss = float(total) / len(y)
        return torch.cat(hits).cpu(), loss if math.isfinite(loss) else None

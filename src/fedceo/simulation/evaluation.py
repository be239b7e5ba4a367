"""Accuracy and loss of the global model, and accuracy of clients' own models.

G is one global model on the whole public test set. P-loc is each client's own model on that client's own test records,
P-glob the same models on the public test set, P-dist the same on the public test set with each class weighted by its
share of the client's training records, each averaged over clients with equal weight. P-dist asks what P-loc asks, with
all test records in the place of a few.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedceo.data import Federation
from fedceo.data.sharing import DERIVED
from fedceo.experiment.task_table import Task as TaskSettings
from fedceo.tasks import Task, make_task
from fedceo.training.batched.blocks import Linear
from fedceo.training.batched.chain import Chain
from fedceo.training.batched.cohort import Batch
from fedceo.training.batched.tracing import NotAChainError, read_chain
from fedceo.training.noise import has_kernels

TOGETHER = 100
"""Linear models evaluated at a time: their logits are one product, which reads the records once for all of them."""
SOME, SOME_RECORDS = 16, 2500
"""Other models that a GPU evaluates at a time by the kernels of training, and the records of each."""

Models = Iterable[tuple[int, Mapping[str, Tensor]]]
"""Clients with the model of each."""


def at_once(device: torch.device) -> int:
    """Records evaluated at a time; a GPU takes as long to be asked as to answer."""
    return 10_000 if device.type == "cuda" else 2000


class Evaluator:
    """Measures weights on the public test set and on the validation records."""

    about: Mapping[str, Any] = MappingProxyType({})
    """What records say of their metric beside its values: nothing, since it is the accuracy."""

    def __init__(
        self,
        model: nn.Module,
        federation: Federation,
        device: torch.device,
        dtype: torch.dtype,
        task: Task | None = None,
    ) -> None:
        """task: one with classes; left out: that of an experiment file which does not say."""
        self.model, self.federation, self.device, self.dtype = model, federation, device, dtype
        self.task = task or make_task(TaskSettings())

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

    def measure_shared(
        self, weights: Mapping[str, Tensor], clients: Sequence[int], record: Mapping[str, Any], by_clients: bool
    ) -> dict[str, Any]:
        """The metrics of clients' own models where all of them use one model.

        Args:
            record: that of `measure`.
            by_clients: whether validation_accuracy shall be that of clients' own models.
        """
        found: dict[str, Any] = {}
        if by_clients:
            found["validation_accuracy"] = self.validate_shared(weights, clients)
        by_class = record["test_accuracy_per_class"]
        found |= self.measure_distribution((client, by_class) for client in clients)
        if self.federation.has_local_test:
            local = self.measure_local(weights, clients)
            found |= {"local_accuracy": local, "personal_accuracy": record["test_accuracy"]}
        return found

    def measure_own(self, models: Callable[[], Models], most: int, by_clients: bool) -> dict[str, Any]:
        """The metrics of clients' own models; by_clients: as for `measure_shared`."""
        validated = {"validation_accuracy": self.validate_personal(models(), most)} if by_clients else {}
        return validated | self.measure_personal(models(), most)

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

    def measure_personal(self, models: Models, most: int) -> dict[str, Any]:
        """The metrics local_accuracy (P-loc) over all models given, personal_accuracy (P-glob) and those of P-dist over
        the first `most`.

        Clients without test records of their own do not count for P-loc; a number over no clients is None.
        """
        local: list[float] = []
        everywhere: list[float] = []
        by_class: list[tuple[int, Sequence[float | None]]] = []
        for group in self._groups(models):
            for client, weights in group:
                x, y = self.federation.local_test_records(client)
                if len(y):
                    local.append(float(self._run(weights, x, y)[0].double().mean()))
            for client, hits in self._hits(group[: most - len(everywhere)], *self._public):
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
        own = (self.on_own_labels(client, accuracies) for client, accuracies in by_class)
        found = sorted(accuracy for accuracy in own if accuracy is not None)
        worst = found[: math.ceil(len(found) / 10)]
        return {
            "distribution_accuracy": sum(found) / len(found) if found else None,
            "distribution_accuracy_worst": sum(worst) / len(worst) if worst else None,
        }

    def validate_personal(self, models: Models, most: int) -> float | None:
        """P-dist over the first `most` models, on the validation records in the place of the test set; None without."""
        if not len(self.federation.validation):
            return None
        labels = self._validation[1].cpu()
        found = [
            (client, self._by_class(hits, labels))
            for group in self._groups(itertools.islice(models, most))
            for client, hits in self._hits(group, *self._validation)
        ]
        return self.measure_distribution(found)["distribution_accuracy"]

    def validate_shared(self, weights: Mapping[str, Tensor], clients: Iterable[int]) -> float | None:
        """As `validate_personal` where all these clients use one model."""
        if not len(self.federation.validation):
            return None
        accuracies = self._by_class(self._run(weights, *self._validation)[0], self._validation[1].cpu())
        return self.measure_distribution((client, accuracies) for client in clients)["distribution_accuracy"]

    def on_own_labels(self, client: int, accuracies: Sequence[float | None]) -> float | None:
        """The mean of the classes' accuracies, weighted as in the client's training records."""
        counts = self.federation.labels_of(client)
        known = [(count, accuracy) for count, accuracy in zip(counts, accuracies, strict=True) if accuracy is not None]
        records = sum(count for count, _ in known)
        return sum(count * accuracy for count, accuracy in known) / records if records else None

    @cached_property
    def _public(self) -> tuple[Tensor, Tensor]:
        """The public test records and labels, on the device: to copy them costs more than a measurement."""
        data, device = self.federation, self.device
        return DERIVED.get(data.test_x, device, lambda: data.test_x.to(device)), data.test_y.to(device)

    @cached_property
    def _validation(self) -> tuple[Tensor, Tensor]:
        data, device = self.federation, self.device
        about = device, data.validation.numpy().tobytes()
        x = DERIVED.get(data.x, about, lambda: data.x[data.validation].to(device))
        return x, data.y[data.validation].to(device)

    def _by_class(self, hits: Tensor, labels: Tensor | None = None) -> list[float | None]:
        """The accuracy on each class, None for a class without records; labels: those of the test set if left out."""
        labels, classes = self.federation.test_y if labels is None else labels, self.federation.classes
        counts = torch.bincount(labels, minlength=classes).tolist()
        right = torch.bincount(labels[hits], minlength=classes).tolist()
        return [h / c if c else None for h, c in zip(right, counts, strict=True)]

    def _groups(self, models: Models) -> Iterator[list[tuple[int, Mapping[str, Tensor]]]]:
        """The models in groups that `_hits` takes together; one at a time where that is no quicker, to save memory."""
        size, left = TOGETHER if self._linear else SOME if self._chain or self._last else 1, iter(models)
        while group := list(itertools.islice(left, size)):
            yield group

    @torch.no_grad()
    def _hits(
        self, models: Sequence[tuple[int, Mapping[str, Tensor]]], x: Tensor, y: Tensor
    ) -> Iterator[tuple[int, Tensor]]:
        """Each client with the mask of the records that its model classifies right."""
        last = self._linear or (self._last if self._share_a_body(models) else None)
        if (last is None and self._chain is None) or len(models) < 2:
            yield from ((client, self._run(weights, x, y)[0]) for client, weights in models)
            return
        put = torch.cat if last else torch.stack
        names = last.names if last else tuple(models[0][1])
        together = {name: put([weights[name] for _, weights in models]) for name in names}
        size = at_once(self.device) if self._linear else SOME_RECORDS
        hits = []
        for records, labels in zip(torch.split(x, size), torch.split(y, size), strict=True):
            inputs = self.federation.inputs(records, self.dtype)
            if last is not None:
                inner = inputs.flatten(1) if self._linear else self._body(models[0][1], inputs, labels)
                logits = F.linear(inner, *together.values()).unflatten(1, (len(models), -1)).transpose(0, 1)
            else:
                assert self._chain is not None
                stored = self._chain.stored(inputs)
                everybodys = stored.expand(len(models), *stored.shape).contiguous()
                counts = torch.full((len(models),), len(labels), device=self.device)
                logits = self._chain.forward(together, Batch(everybodys, labels, counts))[-1].y
            hits.append(logits.argmax(2) == labels)
        yield from zip([client for client, _ in models], torch.cat(hits, 1).cpu(), strict=True)

    @cached_property
    def _read(self) -> Chain | None:
        """The model as a chain of layers, if it is one."""
        try:
            return read_chain(self.model, self.federation.shape)
        except NotAChainError:
            return None

    @cached_property
    def _linear(self) -> Linear | None:
        """The layer of a model that is one linear layer and nothing else."""
        if self._read is None:
            return None
        block, *others = self._read.blocks
        if not isinstance(block, Linear) or others or self._read.entry or block.masked or block.relu:
            return None
        return block

    @cached_property
    def _last(self) -> Linear | None:
        """The linear layer that a chain ends with, on a CPU, where models may share all that is before it."""
        if self._chain or self._read is None or len(self._read.blocks) < 2:
            return None
        last = self._read.blocks[-1]
        return last if isinstance(last, Linear) and not last.masked and not last.relu else None

    def _share_a_body(self, models: Sequence[tuple[int, Mapping[str, Tensor]]]) -> bool:
        """Whether the models are the same but for their last layer, as those with personal heads are."""
        if self._last is None or self._read is None or len(models) < 2:
            return False
        (_, first), *others = models
        names = [name for block in self._read.blocks[:-1] for name in block.names]
        return all(torch.equal(first[name], weights[name]) for _, weights in others for name in names)

    def _body(self, weights: Mapping[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        """(n, features) what the last layer is given."""
        assert self._read is not None
        body = replace(self._read, blocks=self._read.blocks[:-1])
        one = Batch(body.stored(inputs)[None], labels[None], torch.tensor([len(labels)], device=self.device))
        return body.forward({name: w[None] for name, w in weights.items()}, one)[-1].y[0].flatten(1)

    @cached_property
    def _chain(self) -> Chain | None:
        """The kernels that run several models at once, where there are any for the model and the device."""
        return self._read.fused() if self._read and has_kernels(self.device, self.dtype) else None

    @torch.no_grad()
    def _run(self, weights: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, float | None]:
        """A mask of the records that are classified right, and the mean loss, None where it is not finite."""
        self.model.eval()
        hits = []
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        x, y = x.to(self.device), y.to(self.device)
        size = at_once(self.device)
        for records, labels in zip(torch.split(x, size), torch.split(y, size), strict=True):
            logits = functional_call(self.model, dict(weights), (self.federation.inputs(records, self.dtype),))
            total += self.task.loss(logits.double(), labels, "sum")
            hits.append(logits.argmax(1) == labels)
        loss = float(total) / len(y)
        return torch.cat(hits).cpu(), loss if math.isfinite(loss) else None

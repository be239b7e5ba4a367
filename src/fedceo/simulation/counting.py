"""Counts of their own records that clients release: what a method asks for, bounded record by record, and noised."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from fedceo.accounting.ledger import Entry
from fedceo.mechanisms.base import Mechanism
from fedceo.methods.base import Method, Predict, State
from fedceo.simulation.evaluation import at_once
from fedceo.training.batched.tracing import NotAChainError, read_chain
from fedceo.training.context import TrainingContext

ALONE = 256
"""Records that are classified at a time, each by itself."""


def noised_counts(
    method: Method, mechanism: Mechanism, context: TrainingContext, state: State, entry: Entry
) -> dict[int, Tensor]:
    """The counts, (counts,), of every client that releases some in the round.

    Whatever the method says: no client releases counts twice, and no record adds more to them than is accounted for.
    """
    settings, classifier, found = method.settings.counts, Classifier(context), {}
    if settings is None:
        return {}
    for client in (each for each in entry.own if each not in state.counted):
        indices = context.federation.train[client].to(context.device)
        labels = context.labels[indices]
        added = method.counted(state, client, entry.round, labels, classifier.of(indices))
        if added is not None:
            counts = bounded(added, settings.moved).sum(0).cpu()
            noised = mechanism.noised_counts(counts, client, settings.noise)
            found[client] = noised.to(context.device, context.dtype)
    return found


def bounded(added: Tensor, most: float) -> Tensor:
    """Rows, (n, counts), in float64, each no longer than `most`; one that is not finite becomes zero."""
    rows = added.double()
    rows = torch.where(rows.isfinite().all(1, keepdim=True), rows, 0.0)
    return rows * (most / rows.norm(dim=1, keepdim=True)).clamp_max(1.0)


@dataclass(frozen=True)
class Classifier:
    """Tells the classes that models give to single records.

    A model of a user's own may mix the records of a batch, so that one record would move what the others add.
    """

    context: TrainingContext

    @cached_property
    def _mixes(self) -> bool:
        """Whether the model may mix records; nothing that a chain is made of does."""
        try:
            read_chain(self.context.model, self.context.federation.shape)
        except NotAChainError:
            return True
        return False

    def of(self, indices: Tensor) -> Predict:
        """The function that classifies the records with these indices."""

        @torch.no_grad()
        def predict(weights: Mapping[str, Tensor]) -> Tensor:
            model, given = self.context.model.eval(), dict(weights)
            parts = [self.context.inputs_of(part) for part in torch.split(indices, at_once(self.context.device))]
            if self._mixes:
                each = vmap(lambda record: functional_call(model, given, (record[None],))[0], chunk_size=ALONE)
                return torch.cat([each(part) for part in parts]).argmax(1)
            return torch.cat([functional_call(model, given, (part,)) for part in parts]).argmax(1)

        return predict

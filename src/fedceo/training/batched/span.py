"""Plain SGD of models whose first layer is linear, that layer worked out in the span of each client's records.

Every step adds a combination of records to the layer's weights, so that after any number of them W = W0 + A^T X for a
client with records X, (n, features), and A, (n, outputs). A step needs X only in X W^T = X W0^T + (X X^T) A. Once a
client's Gram matrix X X^T is known, a step reads n numbers for each record instead of all its features, and A is
changed in the rows of its batch alone. Features are read twice in a round however many epochs it has: a linear head on
fixed features costs about what one epoch costs, an MLP on pictures a sixth.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedceo.data.sharing import version_of
from fedceo.tensors.weights import Weights
from fedceo.training.batched.blocks import Linear, cut_off
from fedceo.training.batched.chain import Chain, trains
from fedceo.training.batched.cohort import Batch, Call, pad
from fedceo.training.context import TrainingContext

MOST_GRAM_BYTES = 2**28
"""Memory that the Gram matrices of all clients may take."""
LEAST_PASSES = 2
"""Passes over a client's records from which the two readings that the span needs are worth it."""


@dataclass
class Span:
    """Local training of a chain on the clients of one federation, whose first block is a linear layer.

    Attributes:
        chain: the model.
        context: where clients and records are read from.
        grams: (client, version of the records) -> (n, n) inner products of its records, and 1 for a bias; made when
            it first trains.
    """

    chain: Chain
    context: TrainingContext
    grams: dict[Any, Tensor] = field(default_factory=dict)

    @staticmethod
    def of(chain: Chain, context: TrainingContext) -> "Span | None":
        """The span of a chain that begins with a linear layer, where the Gram matrices of all clients fit."""
        sizes = context.federation.sizes.double()
        fit = float(sizes.square().sum()) * context.dtype.itemsize <= MOST_GRAM_BYTES
        narrow = float(sizes.max()) <= context.federation.x[0].numel()
        return Span(chain, context) if chain.first_linear and fit and narrow else None

    @property
    def linear(self) -> Linear:
        assert self.chain.first_linear
        return self.chain.first_linear

    def suits(self, call: Call) -> bool:
        """Whether the steps of a call are quicker in the span; they must be those of plain SGD."""
        most = int(self.context.federation.sizes.max())
        return call.context.federation is self.context.federation and call.work.passes(most) >= LEAST_PASSES

    @property
    def bytes_of_a_client(self) -> int:
        """Memory that a client's steps go through, at most."""
        most, first = int(self.context.federation.sizes.max()), self.context.model.get_parameter(self.linear.weight)
        later = sum(p.numel() for p in self.context.model.parameters()) - first.numel()
        return (most * (most + 3 * len(first)) + later) * self.context.dtype.itemsize

    def descend(self, call: Call, read: TrainingContext, out: Weights) -> Tensor:
        """Train the clients of a call; arguments and answer are those of descent.descend."""
        given = call.context.batches(call.clients, call.round_, call.work)
        masks = call.context.masks(call.clients, call.round_, call.work, given)
        taken = torch.tensor([len(batches) for batches in given])
        # those who take most steps come first, so that whoever still takes one is among the first
        order = taken.argsort(descending=True, stable=True).tolist()
        taken, given = taken[order], [given[k] for k in order]
        own = [self.context.federation.train[call.clients[k]] for k in order]
        begun, grams = self._begun(call, order, own, read)
        clients, most, _ = begun.shape
        batches = pad(given, -1, (1, 1), clients)
        # filling has a share of 0, wherever it stands
        rows = pad(self._places(own, given), 0, (1, 1), clients) + most * torch.arange(clients)[:, None]
        counts = (batches >= 0).sum(2)
        shares = (batches >= 0) / counts.clamp_min(1)[..., None].to(read.dtype)
        labels = read.labels[torch.where(batches >= 0, batches, read.blank)]
        kept = None if masks is None else pad([masks[k] for k in order], 0.0, (1, 1), clients)
        work, rest = call.work, replace(self.chain, blocks=self.chain.blocks[1:])
        models = {name: w[order].to(read.dtype) for name, w in call.starts.items() if name not in self.linear.names}
        first = FirstLayer(self.linear, begun, grams, trains(self.linear, work.only))
        losses = begun.new_zeros(clients)
        for step in range(len(batches)):
            active = int((taken > step).sum())
            mask = None if kept is None else kept[step, :active]
            y = first.outputs(rows[step, :active], mask)
            batch = Batch(y, labels[step, :active], counts[step, :active], mask, shares[step, :active])
            some = {name: w[:active] for name, w in models.items()}
            of_step, dy = rest.descend(some, batch, work.learning_rate, work.only, first.trains)
            losses[:active] += of_step
            if first.trains:
                first.step(dy, work.learning_rate)
        for name, w in models.items():
            out[name][order] = w
        self._end(call, order, own, first.combined, read, out)
        return torch.empty_like(losses).index_copy_(0, torch.tensor(order), losses / taken)

    def _places(self, own: Sequence[Tensor], given: Sequence[Tensor]) -> list[Tensor]:
        """The batches with each record's place among its client's records."""
        place = torch.zeros(self.context.blank + 1, dtype=torch.int64)
        found = []
        for mine, batches in zip(own, given, strict=True):
            place[mine] = torch.arange(len(mine))
            found.append(place[batches])
        return found

    def _begun(
        self, call: Call, order: Sequence[int], own: Sequence[Tensor], read: TrainingContext
    ) -> tuple[Tensor, Tensor]:
        """(K, n, outputs) what the starts say of every record, and (K, n, n) the Gram matrices, in this order."""
        starts, most = call.starts[self.linear.weight], max(map(len, own))
        begun = starts.new_zeros(len(own), most, starts.shape[1], dtype=read.dtype)
        grams = begun.new_zeros(len(own), most, most)
        for place, (k, mine) in enumerate(zip(order, own, strict=True)):
            x = read.inputs_of(mine).flatten(1)
            begun[place, : len(mine)] = (starts[k].to(read.dtype) @ x.T).T  # a CPU multiplies by few columns slowly
            about = call.clients[k], version_of(self.context.federation.x)  # somebody may have written to them
            if about not in self.grams:
                gram = x @ x.T
                self.grams[about] = gram if self.linear.bias is None else gram.add_(1)
            grams[place, : len(mine), : len(mine)] = self.grams[about]
        if self.linear.bias is not None:
            begun += call.starts[self.linear.bias][list(order)].to(read.dtype)[:, None]
        return begun, grams

    def _end(
        self,
        call: Call,
        order: Sequence[int],
        own: Sequence[Tensor],
        combined: Tensor,
        read: TrainingContext,
        out: Weights,
    ) -> None:
        """Write the first layers that the combinations of records come to."""
        starts = call.starts[self.linear.weight]
        for k, mine, of_records in zip(order, own, combined, strict=True):
            x = read.inputs_of(mine).flatten(1)
            torch.addmm(starts[k].to(read.dtype), of_records[: len(mine)].T, x, out=out[self.linear.weight][k])
            if self.linear.bias is not None:
                torch.add(call.starts[self.linear.bias][k], of_records.sum(0), out=out[self.linear.bias][k])


class FirstLayer:
    """A linear layer told as combinations of records: y = X W0^T + (X X^T) A, masked and cut off at zero.

    Attributes:
        trains: whether the layer trains, so that there is an A.
        combined: (K, n, outputs) A.
    """

    def __init__(self, linear: Linear, begun: Tensor, grams: Tensor, trains: bool) -> None:
        """begun: (K, n, outputs) X W0^T; grams: (K, n, n)."""
        self.linear, self.begun, self.grams, self.trains = linear, begun.flatten(0, 1), grams.flatten(0, 1), trains
        self.combined = torch.zeros_like(begun)

    def outputs(self, rows: Tensor, mask: Tensor | None) -> Tensor:
        """(k, B, outputs) for the first k clients' batches, which `step` will come back to; rows: (k, B) of all K n."""
        self.rows, self.mask, combined = (
            rows.flatten(),
            mask if self.linear.masked else None,
            self.combined[: len(rows)],
        )
        y = self.begun.index_select(0, self.rows).view(*rows.shape, -1)
        if self.trains:
            near = self.grams.index_select(0, self.rows).view(*rows.shape, -1)
            few = y.shape[2] < y.shape[1]  # a CPU multiplies by few columns slowly
            y = torch.baddbmm(y.mT, combined.mT, near.mT).mT if few else torch.baddbmm(y, near, combined)
        if self.mask is not None:
            y = y.mul_(self.mask)
        self.y = y.relu_() if self.linear.relu else y
        return self.y

    def step(self, dy: Tensor, rate: float) -> None:
        """A step of plain SGD, given the gradient with respect to the last outputs."""
        if self.linear.relu:
            dy = cut_off(dy, self.y)
        g = dy if self.mask is None else dy.mul_(self.mask)
        self.combined.flatten(0, 1).index_add_(0, self.rows, g.flatten(0, 1), alpha=-rate)

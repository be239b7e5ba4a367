"""The server's tests of a round's uploads: each by itself, and against directions that honest noise cannot know.

The server knows before a round the model, the way that it has come, the gradients of the loss on the public records,
and what was uploaded in the round before; and no client knows what the others upload in this one, nor the gradients at
the model that the others make. None of it costs privacy: tests are made from what the server has anyway.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedceo.data import Federation
from fedceo.deploy.honest import Honest
from fedceo.mechanisms.base import Mechanism
from fedceo.tensors.weights import Weights, as_row, from_row

MOST_RECORDS = 500
"""Public records whose losses are looked at, spread evenly over all: a gradient is taken once for each upload."""
MOST_SLOPES = 10
"""Groups of classes whose losses are looked at one by one; each is a vector as long as the model."""


class UploadTests:
    """Tells which uploads no honest client sends; remembers those of the last round, until the server is restarted."""

    def __init__(self, mechanism: Mechanism, model: nn.Module, public: Federation, first: Weights) -> None:
        """
        Args:
            public: the federation whose test records are the server's, possibly none.
            first: the model at the beginning of the run.
        """
        self._model, self._public, self._first = model, public, first
        self._last: dict[int, Tensor] = {}
        # the model, the way so far, the public records twice, and two uploads of each client
        self.honest = Honest.under(mechanism, first, directions=4 + 2 * public.clients)

    def lies(self, uploads: Mapping[int, Weights], starts: Mapping[int, Weights], now: Weights) -> dict[int, str]:
        """Client -> why its upload is refused, in a line.

        Args:
            starts: client -> the weights from which it was told to start.
            now: the global model before the round.
        """
        rows = {client: as_row(upload) - as_row(starts[client]) for client, upload in uploads.items()}
        alone = {client: self.honest.lie(from_row(row, now), starts[client]) for client, row in rows.items()}
        lies = {client: lie for client, lie in alone.items() if lie is not None}
        rest = {client: row for client, row in rows.items() if client not in lies}
        known = self._known_before(now)
        for client, row in rest.items():
            others = {k: other for k, other in rest.items() if k != client}
            length = float(as_row(starts[client]).norm())
            lie = self.honest.lie_along(row, length, known | self._known_from(others, now))
            if lie is not None:
                lies[client] = lie
        self._last = rows
        return lies

    def _known_before(self, now: Weights) -> dict[str, Tensor]:
        """What it is -> (m, D), directions at right angles that the server knows before the round."""
        way = as_row(now) - as_row(self._first)
        known = {"the model": as_row(now)[None], "the way so far": way[None]}
        known |= {f"the last upload of client {k}": row[None] for k, row in self._last.items()}
        return known | self._slopes("before the round", as_row(now), now)

    def _known_from(self, others: Mapping[int, Tensor], now: Weights) -> dict[str, Tensor]:
        """The same of what all others uploaded, and of the model that they would make without the client."""
        beside = {f"the upload of client {k}": row[None] for k, row in others.items()}
        moved = as_row(now) + sum(others.values()) / (len(others) + 1)
        return beside | self._slopes("after it", moved, now)

    def _slopes(self, when: str, row: Tensor, now: Weights) -> dict[str, Tensor]:
        slopes = public_slopes(self._model, self._public, from_row(row, now))
        return {f"the loss on the public records {when}": orthonormal(torch.stack(slopes))} if slopes else {}


def public_slopes(model: nn.Module, public: Federation, weights: Weights) -> list[Tensor]:
    """(D,) gradient of the mean loss at the weights, for each class of the public records, or each few classes."""
    every = -(-len(public.test_y) // MOST_RECORDS) or 1
    x, y = public.test_x[::every], public.test_y[::every]
    kinds = y % MOST_SLOPES
    model.eval()
    leaves = {name: w.detach().clone().requires_grad_() for name, w in weights.items()}
    first = next(iter(leaves.values()))
    slopes = []
    for kind in kinds.unique():
        records = public.inputs(x[kinds == kind].to(first.device), first.dtype)
        loss = F.cross_entropy(functional_call(model, leaves, (records,)), y[kinds == kind].to(first.device))
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        slopes.append(as_row(dict(zip(leaves, found, strict=True))))
    return [slope for slope in slopes if bool(slope.isfinite().all())]


def orthonormal(rows: Tensor) -> Tensor:
    """(m, D) with the span of the rows; a row that adds nothing gives way to some direction, which does no harm."""
    return torch.linalg.qr(rows.T).Q.T

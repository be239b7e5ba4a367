"""Gradients of single records, one at a time and then clipped: a second implementation of what DP-SGD sums up.

And the small clients whose gradients these are: a few real records each, some with a canary among them.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedceo.audit.findings import Floats
from fedceo.tensors.weights import Weights
from fedceo.training.context import TrainingContext
from fedceo.training.work import Work

if TYPE_CHECKING:
    from fedceo.data import Federation

RECORDS = 3
"""Records of a client whose noise is checked; one that may hold a canary has one beside it."""
CANARY_SCALE = 100.0
AT_ONCE = 64
"""Records whose gradients are taken at once."""


@dataclass(frozen=True)
class Phase:
    """A phase of a round as the trainer was asked for it: clients, their starts, name -> (K, ...), and the result."""

    starts: Weights
    clients: tuple[int, ...]
    round: int
    work: Work
    trained: Weights

    @property
    def names(self) -> list[str]:
        """The parameters that train."""
        return [name for name in self.starts if self.work.only is None or name in self.work.only]

    @property
    def sizes(self) -> list[int]:
        """Entries of each of them."""
        return [self.starts[name][0].numel() for name in self.names]

    def sums(self, context: TrainingContext) -> Floats:
        """The noised sums of clipped gradients, (K, D), as the result shows them; several steps add up."""
        moved = [(self.starts[name].double() - self.trained[name].double()).flatten(1) for name in self.names]
        batch = np.array([context.expected_batch(client, self.work) for client in self.clients])
        return torch.cat(moved, 1).cpu().numpy() * (batch / self.work.learning_rate)[:, None]


@dataclass(frozen=True)
class Signals:
    """What the steps of K clients add up beside noise.

    Attributes:
        sums: (K, D) clipped gradients.
        steps: (K,) how many steps there were.
        directions: for each client (n, D) orthonormal rows that span the gradients of its first records.
    """

    sums: Floats
    steps: Floats
    directions: list[Floats]


def clipped_sums(phase: Phase, context: TrainingContext, clip: float) -> Signals:
    """The sums over the steps of each client of a phase."""
    plans = [context.plan(client, phase.round, phase.work) for client in phase.clients]
    rows, records, counts, masks = [], [], [], []
    for k, (batches, mask) in enumerate(plans):
        taken = batches >= 0
        # without masks a record has the same gradient in every step
        found, times = torch.unique(batches[taken], return_counts=True) if mask is None else (batches[taken], None)
        rows.append(torch.full((len(found),), k, device=found.device))
        records.append(found)
        counts.append(torch.ones(len(found)) if times is None else times.double().cpu())
        masks += [] if mask is None else [mask[taken]]
    owners = torch.cat(rows)
    gradients = clipped_gradients(phase, context, owners, torch.cat(records), torch.cat(masks) if masks else None, clip)
    sums, of = np.zeros((len(phase.clients), sum(phase.sizes))), owners.cpu().numpy()
    np.add.at(sums, of, gradients * torch.cat(counts).numpy()[:, None])
    directions = [np.linalg.qr(gradients[of == k][:RECORDS].T)[0].T for k in range(len(phase.clients))]
    return Signals(sums, np.array([float(len(batches)) for batches, _ in plans]), directions)


def clipped_gradients(
    phase: Phase, context: TrainingContext, owners: Tensor, records: Tensor, masks: Tensor | None, clip: float
) -> Floats:
    """The gradients of P single records, each at its owner's start and clipped, (P, D), in the parameters that train.

    Args:
        owners: (P,) positions among the phase's clients.
        records: (P,) indices of the federation's records.
        masks: (P, units) dropout masks, where the model takes them.
    """
    if not len(records):
        return np.zeros((0, sum(phase.sizes)))
    module, names = context.model.train(), phase.names
    x, y = context.records(records.to(context.device))
    owners = owners.to(context.device)
    trained = {name: phase.starts[name][owners].detach() for name in names}
    fixed = {name: w[owners].detach() for name, w in phase.starts.items() if name not in names}
    masks = None if masks is None else masks.to(context.device)

    def loss(trained: Weights, fixed: Weights, x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
        arguments = (x[None],) if mask is None else (x[None], mask[None])
        return context.task.loss(functional_call(module, {**fixed, **trained}, arguments), y[None])

    try:
        axes = (0, 0, 0, 0, None if masks is None else 0)
        found = vmap(grad(loss), in_dims=axes, chunk_size=AT_ONCE)(trained, fixed, x, y, masks)
    except (RuntimeError, NotImplementedError, ValueError):  # a model that torch cannot run many times at once
        each = []
        for i in range(len(records)):
            mine, others = ({name: w[i] for name, w in part.items()} for part in (trained, fixed))
            each.append(grad(loss)(mine, others, x[i], y[i], None if masks is None else masks[i]))
        found = {name: torch.stack([one[name] for one in each]) for name in names}
    rows = torch.cat([found[name].flatten(1) for name in names], 1).double().cpu().numpy()
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, clip / np.maximum(lengths, np.finfo(float).tiny))


def small_clients(
    federation: "Federation", checked: int, canaries: int, model: nn.Module, like: Tensor
) -> "Federation":
    """Clients with RECORDS records under the numbers of real ones, and then those of one record and a canary.

    A canary is a real record a hundred times as large under the label that the model thinks least likely, or with its
    own targets where these are no labels.
    """
    places, train = [], []
    for k in range(checked):
        mine = federation.train[k]
        places.append(mine[torch.arange(RECORDS) % len(mine)])
        train.append(torch.arange(k * RECORDS, (k + 1) * RECORDS))
    for k in range(canaries):
        mine, first = federation.train[k], checked * RECORDS + 2 * k
        places.append(mine[torch.arange(2) % len(mine)])
        train.append(torch.tensor([first, first + 1]))
    taken = torch.cat(places)
    x, y = federation.inputs(federation.x[taken], like.dtype), federation.y[taken].clone()
    canary = slice(checked * RECORDS + 1, None, 2)
    x[canary] *= CANARY_SCALE
    if y.ndim == 1:
        with torch.no_grad():
            y[canary] = model.eval()(x[canary].to(like.device)).argmin(1).cpu()
    return replace(federation, x=x, y=y, train=train, mean=(0.0,), std=(1.0,))

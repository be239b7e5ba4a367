"""Training and smoothing by a pool of workers, as the rest of the house knows them.

What comes back is placed by client and by frequency, never in order of arrival, so that sums on the server run as they
do on one machine. Batches, dropout and noise are functions of (seed, purpose, round, client): a share that is trained
again elsewhere gives the same weights. Under randomness = "system" it draws anew, and what the lost worker drew is
never seen by anybody.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedceo.errors import UsageError
from fedceo.scale.cluster import Workers, connected, ray
from fedceo.scale.pool import Pool, pool_of
from fedceo.scale.scheduling import MOST_TRIES, TooManyTriesError, cut
from fedceo.scale.worker import Kit, as_array, as_tensor
from fedceo.tensors import truncated_tsvd, truncated_tsvds
from fedceo.tensors.shrinkage import Stack, shrink_here
from fedceo.tensors.weights import Weights
from fedceo.training.context import TrainingContext
from fedceo.training.work import Trained, Work

SPREAD_FROM = 64
"""Thin side of the matrices whose decomposition outweighs their way to a worker and back."""


@dataclass(frozen=True)
class RemoteTrainer:
    """A Trainer whose cohort is cut into shares that workers train, each as one batch."""

    context: TrainingContext
    pool: Pool

    def train(self, starts: Weights, clients: Sequence[int], round_: int, work: Work) -> Trained:
        common, own = apart(starts)
        sent = ray.put(common)  # once, however many shares there are
        shares = cut(len(clients), self.pool.size)
        tasks = [
            (sent, {name: w[share.start : share.stop] for name, w in own.items()}, [clients[k] for k in share],
             round_, work)
            for share in shares
        ]  # fmt: skip
        losses = torch.empty(len(clients), dtype=self.context.dtype, device=self.context.device)
        weights = {name: losses.new_empty(w.shape) for name, w in starts.items()}
        try:
            for k, (found, loss) in self.pool.run("train", tasks):
                rows = slice(shares[k].start, shares[k].stop)
                for name, w in found.items():
                    weights[name][rows] = as_tensor(w).to(losses.device)
                losses[rows] = as_tensor(loss).to(losses.device)
        except TooManyTriesError as error:
            share = shares[error.task]
            raise UsageError(
                f"--workers: {MOST_TRIES} in a row did not survive clients {clients[share[0]]} to "
                f"{clients[share[-1]]} of round {round_}; do they fit in a worker's memory?"
            ) from None
        return Trained(weights, losses)


def apart(starts: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
    """What all clients start from, once, and what each has of its own, (K, ...), as arrays.

    Methods give all clients one model by a stack that repeats it without copying.
    """
    common = {name: as_array(w[0]) for name, w in starts.items() if w.stride(0) == 0}
    return common, {name: as_array(w) for name, w in starts.items() if name not in common}


@dataclass(frozen=True)
class Remote:
    """What a run does elsewhere."""

    trainer: RemoteTrainer
    pool: Pool

    def smooth(self, tensors: Sequence[Tensor], thresholds: Sequence[float]) -> list[Tensor]:
        """The truncated t-SVD of each, its frequencies on all workers where they are many and large."""
        is_spread = [not w.is_cuda and min(w.shape[:2]) >= SPREAD_FROM and w.shape[2] >= 4 for w in tensors]
        if not any(is_spread):
            return truncated_tsvds(tensors, thresholds)
        ways = (self._shrink_all if spread else shrink_here for spread in is_spread)
        return [truncated_tsvd(*each) for each in zip(tensors, thresholds, ways, strict=True)]

    def _shrink_all(self, stacks: Iterable[Stack]) -> Iterator[tuple[int, Tensor]]:
        tasks = [(as_array(stack), tau, total) for stack, tau, total in stacks]
        return ((k, as_tensor(shrunk)) for k, shrunk in self.pool.run("shrink", tasks))

    def about(self) -> dict[str, Any]:
        """Where it was, for the run's summary."""
        workers = self.pool
        return {"ray": ray.__version__, "count": workers.size, "machines": len(workers.machines), "lost": workers.lost}


@contextmanager
def on_workers(workers: Workers, context: TrainingContext, engine: str) -> Iterator[Remote]:
    """Workers for one run, ready when the context begins and gone when it ends."""
    with connected(workers, context.device) as (count, gpus):
        kit = Kit.of(context, engine, copy.deepcopy(context.model).cpu())
        with pool_of(kit, count, gpus) as begun:
            yield Remote(RemoteTrainer(context, begun), begun)

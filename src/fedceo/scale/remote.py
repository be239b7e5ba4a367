"""A trainer and a smoothing, computed by a pool of workers, with the interfaces of the local ones.

Results are stored by client and by frequency, never in order of arrival, so that sums on the server run in the same
order as on one machine. Batches, dropout and noise are functions of (seed, purpose, round, client): a task that is
repeated on another worker gives the same weights. Under randomness = "system" the second worker draws anew, and nobody
sees the numbers that the lost worker drew.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedceo.errors import UsageError
from fedceo.scale.cluster import Workers, connected, ray
from fedceo.scale.pool import Pool, pool_of
from fedceo.scale.scheduling import MOST_TRIES, TooManyTriesError, cut
from fedceo.scale.worker import WorkerSetup, as_array, as_tensor
from fedceo.tensors import truncated_tsvd, truncated_tsvds
from fedceo.tensors.shrinkage import Stack, shrink_here
from fedceo.tensors.weights import Weights
from fedceo.training.context import TrainingContext
from fedceo.training.work import Trained, Work

SPREAD_FROM = 64
"""Smaller side of the matrices from which on a decomposition takes longer than the transfer to a worker and back."""


@dataclass(frozen=True)
class RemoteTrainer:
    """A Trainer whose cohort is cut into tasks, each a range of clients that one worker trains as one batch."""

    context: TrainingContext
    pool: Pool

    def train(self, starts: Weights, clients: Sequence[int], round_: int, work: Work) -> Trained:
        common, personal = split_starts(starts)
        sent = ray.put(common)  # once, however many tasks there are
        ranges = cut(len(clients), self.pool.size)
        tasks = [
            (sent, {name: w[part.start : part.stop] for name, w in personal.items()}, [clients[k] for k in part],
             round_, _on_host(work.of(slice(part.start, part.stop))))
            for part in ranges
        ]  # fmt: skip
        losses = torch.empty(len(clients), dtype=self.context.dtype, device=self.context.device)
        weights = {name: losses.new_empty(w.shape) for name, w in starts.items()}
        try:
            for k, (found, loss) in self.pool.run("train", tasks):
                rows = slice(ranges[k].start, ranges[k].stop)
                for name, w in found.items():
                    weights[name][rows] = as_tensor(w).to(losses.device)
                losses[rows] = as_tensor(loss).to(losses.device)
        except TooManyTriesError as error:
            part, name_of = ranges[error.task], self.context.federation.name_of
            raise UsageError(
                f"--workers: {MOST_TRIES} in a row did not survive clients {name_of(clients[part[0]])} to "
                f"{name_of(clients[part[-1]])} of round {round_}; do they fit in a worker's memory?"
            ) from None
        return Trained(weights, losses)


def _on_host(work: Work) -> Work:
    """The Work with its models where a task can carry them."""

    def here(models: Weights | None) -> Weights | None:
        return None if models is None else {name: w.cpu() for name, w in models.items()}

    return replace(work, anchor=here(work.anchor), shift=here(work.shift))


def split_starts(starts: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters from which all clients start, once, and those that differ by client, (K, ...), as arrays.

    A method gives all clients one model as a stack that repeats it without copying, whose first stride is 0.
    """
    common = {name: as_array(w[0]) for name, w in starts.items() if w.stride(0) == 0}
    return common, {name: as_array(w) for name, w in starts.items() if name not in common}


@dataclass(frozen=True)
class Remote:
    """The parts of a run that workers compute."""

    trainer: RemoteTrainer
    pool: Pool

    def smooth(self, tensors: Sequence[Tensor], thresholds: Sequence[float]) -> list[Tensor]:
        """The truncated t-SVD of each tensor; where its frequencies are many and large, all workers compute them."""
        is_spread = [not w.is_cuda and min(w.shape[:2]) >= SPREAD_FROM and w.shape[2] >= 4 for w in tensors]
        if not any(is_spread):
            return truncated_tsvds(tensors, thresholds)
        ways = (self._shrink_all if spread else shrink_here for spread in is_spread)
        return [truncated_tsvd(*each) for each in zip(tensors, thresholds, ways, strict=True)]

    def _shrink_all(self, stacks: Iterable[Stack]) -> Iterator[tuple[int, Tensor]]:
        tasks = [(as_array(stack), tau, total) for stack, tau, total in stacks]
        return ((k, as_tensor(shrunk)) for k, shrunk in self.pool.run("shrink", tasks))

    def about(self) -> dict[str, Any]:
        """Ray's version and the number of workers and machines, for the run's summary."""
        workers = self.pool
        return {"ray": ray.__version__, "count": workers.size, "machines": len(workers.machines), "lost": workers.lost}


@contextmanager
def on_workers(workers: Workers, context: TrainingContext, engine: str) -> Iterator[Remote]:
    """The workers of one run, ready when the context begins and ended when it ends."""
    with connected(workers, context.device) as (count, gpus):
        setup = WorkerSetup.of(context, engine, copy.deepcopy(context.model).cpu())
        with pool_of(setup, count, gpus) as pool:
            yield Remote(RemoteTrainer(context, pool), pool)

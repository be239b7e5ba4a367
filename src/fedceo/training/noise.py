"""The noise of record-level privacy, step by step, for one client or many.

On a CPU each client's noise comes from its own generator of the Schedule, step after step. On a GPU it is a function of
(key, step, entry), the key drawn from that generator, so that it can be drawn inside a captured step, for many clients
or one: a loop over clients gets the same numbers.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedceo.training.draws import HAS_TRITON
from fedceo.training.normals import fill_normals
from fedceo.training.per_example import standard_normal
from fedceo.training.schedule import Schedule
from fedceo.training.system_draws import SystemGenerator
from fedceo.training.work import Work

Clients = tuple[Schedule, int, Sequence[int]]
"""Clients of a run: its Schedule, the moment, and their numbers."""


def has_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels of training/cuda run on this device in this precision."""
    return HAS_TRITON and device.type == "cuda" and dtype == torch.float32


class RecordNoise:
    """Standard normals for the clients of a cohort in one round.

    Attributes:
        keys: (K,) the clients' keys where noise is a function of them, else None.
    """

    def __init__(
        self, runs: Sequence[Clients], device: torch.device, dtype: torch.dtype, purpose: str = "record noise"
    ) -> None:
        """runs: the clients of one or more runs, one after another.

        purpose: "turned noise" for steps in other coordinates, where the same numbers would be another noise: from two
        models with both, much of it could be taken away.
        """
        self.device, self.dtype = device, dtype
        self.keys: Tensor | None = None
        self.generators: list[np.random.Generator] = []
        if HAS_TRITON and device.type == "cuda":
            keys = [schedule.keys(purpose, moment, clients) for schedule, moment, clients in runs]
            self.keys = torch.from_numpy(np.concatenate(keys)).to(device)
        else:
            self.generators = [
                schedule.generator(purpose, moment, client) for schedule, moment, clients in runs for client in clients
            ]

    @cached_property
    def pool(self) -> ThreadPoolExecutor | None:
        """As many threads as torch may use, or none where that is one: clients may train in threads of their own."""
        threads = torch.get_num_threads()
        return ThreadPoolExecutor(threads) if threads > 1 else None

    def draw(self, step: int, size: int) -> Tensor:
        """(K, size) standard normals for one step; steps must be asked for in order."""
        if self.keys is not None:
            from fedceo.training.cuda.step import fill_noise

            return fill_noise(self.keys, torch.tensor([step], device=self.device), size).to(self.dtype)
        if self.device.type != "cpu":
            return torch.stack([standard_normal(size, each, self.device, self.dtype) for each in self.generators])
        drawn = torch.empty(len(self.generators), size, dtype=self.dtype)
        # a part of a step's time would go into drawing one client after another; NumPy lets go of Python meanwhile
        together = map if self.pool is None else self.pool.map
        list(together(_fill, drawn.numpy(), self.generators))
        return drawn


def _fill(out: npt.NDArray[Any], generator: np.random.Generator) -> None:
    """Fill a vector with standard normals of the host."""
    if out.dtype == np.float32 and not isinstance(generator, SystemGenerator):
        fill_normals(out, generator)
    else:
        generator.standard_normal(out=out, dtype=out.dtype)


def noise_of_training(work: Work, sizes: Sequence[int]) -> float:
    """Standard deviation of the noise that a round of DP-SGD leaves in an entry of a model, over all clients.

    The noise of one step goes on through momentum and the proximal term, which are linear: the closed form adds up the
    squares of what is left of it after 1, 2, ... steps. Gradients are taken as they would be without noise, whose
    answer to it is of the order of learning rate times curvature.

    Args:
        work: with `record` set, and no terms but these.
        sizes: training records of each client.
    """
    assert work.record is not None
    of_a_sum = work.record.noise_multiplier * work.record.clip * work.learning_rate
    variances = []
    for records in sizes:
        batches = -(-records // work.batch_size)
        count = min(work.epochs * batches, work.steps or work.epochs * batches)
        left = left_of_noise(count, work.momentum, work.learning_rate * work.proximal)
        variances.append((of_a_sum * batches / records) ** 2 * left)
    return math.sqrt(sum(variances) / len(variances))


@cache
def left_of_noise(steps: int, momentum: float, pull: float) -> float:
    """The squares of what is left of a unit of noise after 1 to `steps` steps, in units of the learning rate, added up.

    pull: learning rate times mu.
    """
    moved, velocity, total = 0.0, 1.0, 0.0
    for _ in range(steps):
        moved -= velocity
        total += moved**2
        velocity = momentum * velocity + pull * moved
    return total


@cache
def left_of_a_way(steps: int, momentum: float, pull: float) -> float:
    """The part of a way from where the proximal term pulls to that is left after so many steps without gradients."""
    way, velocity = 1.0, 0.0
    for _ in range(steps):
        velocity = momentum * velocity + pull * way
        way -= velocity
    return way

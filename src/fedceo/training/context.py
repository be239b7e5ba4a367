"""The context of local training: the model, the clients' records and the random choices that a trainer works with."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from fedceo.data import Federation
from fedceo.data.sharing import DERIVED
from fedceo.experiment.task_table import Task as TaskSettings
from fedceo.tasks import Task, make_task
from fedceo.training.draws import DeviceDraws
from fedceo.training.memory import empty
from fedceo.training.schedule import Schedule
from fedceo.training.work import ALL_RECORDS, Work

SQUARES: Any = WeakTensorKeyDictionary()
"""Inputs that runs share -> the squared norms of each, for as long as anybody holds the inputs."""
MEASURED_AT_ONCE = 4096
"""Records whose norms are taken at a time."""
MOST_READY_BYTES = 2**30
"""Size up to which all records are normalised once and kept (CIFAR-10 takes 0.6 GiB in float32).

Larger data are normalised batch by batch. On a GPU the limit is an eighth of its memory.
"""


@dataclass(frozen=True)
class TrainingContext:
    """The model, records, random choices, device and precision of a trainer.

    Attributes:
        ready: the tensor that `inputs` would compute, where it exists already.
        task: what is learnt; left out: that of an experiment file which does not say.
        planned: the latest batches by all that they follow from; runs of one seed on one federation share them.
    """

    model: nn.Module
    federation: Federation
    schedule: Schedule
    device: torch.device
    dtype: torch.dtype
    ready: Tensor | None = None
    task: Task = field(default_factory=lambda: make_task(TaskSettings()))
    planned: dict[Any, list[Tensor]] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def draws(self) -> Schedule | DeviceDraws:
        """The source of batches and dropout masks: the Schedule on a CPU, the device itself otherwise."""
        return self.schedule if self.device.type == "cpu" else DeviceDraws(self.schedule, self.device)

    @cached_property
    def inputs(self) -> Tensor | None:
        """All records as the model takes them and one of zeros, (n + 1, *shape); None if they are too many to keep."""
        if self.ready is not None:
            return self.ready
        data, most = self.federation, MOST_READY_BYTES
        if self.device.type == "cuda":
            most = torch.cuda.get_device_properties(self.device).total_memory // 8
        if data.x.numel() * self.dtype.itemsize > most:
            return None

        def prepared() -> Tensor:
            ready = empty((len(data.x) + 1, *data.shape), self.dtype, self.device)
            ready[-1] = 0
            ready[:-1] = data.inputs(data.x.to(self.device), self.dtype)
            return ready

        return DERIVED.get(data.x, ("inputs", self.device, self.dtype, data.mean, data.std), prepared)

    @cached_property
    def labels(self) -> Tensor:
        """(n + 1, ...) the records' labels or other targets, on the device, numbers in the precision of training."""
        y = self.federation.y
        targets = torch.cat([y, y.new_zeros(1, *y.shape[1:])]).to(self.device)
        return targets.to(self.dtype) if targets.is_floating_point() else targets

    @cached_property
    def squares(self) -> Tensor:
        """(n + 1,) the squared norms of `inputs`, summed in float64: what is clipped by them must not pass the clip."""
        inputs = self.inputs
        assert inputs is not None
        if inputs in SQUARES:
            return cast(Tensor, SQUARES[inputs])
        parts = inputs.flatten(1).split(MEASURED_AT_ONCE)
        found = torch.cat([part.double().square().sum(1) for part in parts]).to(self.dtype)
        if self.ready is None:  # which other runs read too
            SQUARES[inputs] = found
        return found

    @property
    def blank(self) -> int:
        """The index of a record of zeros, which fills batches up."""
        return len(self.federation.x)

    def records(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The records with these indices, (...), as the model takes them, (..., *shape), and their labels."""
        return self.inputs_of(indices), self.labels[indices]

    def inputs_of(self, indices: Tensor) -> Tensor:
        """The records with these indices, without their labels."""
        if self.inputs is not None:
            # index_select is three times faster here than the same by brackets
            flat = self.inputs.index_select(0, indices.flatten())
            return flat.view(*indices.shape, *self.federation.shape)
        here = indices.to(self.federation.x.device)
        inputs = self.federation.inputs(self.federation.x[here.clamp_max(self.blank - 1)].to(self.device), self.dtype)
        filling = (indices == self.blank).view(*indices.shape, *(1,) * len(self.federation.shape))
        return inputs.masked_fill_(filling, 0.0)

    def make_ready(self) -> bool:
        """Normalise all records now if they may be kept; returns whether `records` then reads from the device alone."""
        return self.inputs is not None

    def plan(self, client: int, round_: int, work: Work) -> tuple[Tensor, Tensor | None]:
        """A client's batches of a round.

        Returns:
            (steps, B) indices of the federation's records, -1 for filling, and (steps, B, units) dropout masks or None.
        """
        (batches,) = self.batches([client], round_, work)
        masks = self.masks([client], round_, work, [batches])
        return batches, None if masks is None else masks[0]

    def batches(self, clients: Sequence[int], round_: int, work: Work) -> list[Tensor]:
        """The batches that `plan` gives for each of these clients."""
        if self.schedule.randomness == "system":  # whose draws are never the same
            return self._drawn(clients, round_, work)
        key = tuple(clients), work.moment(round_), work.batch_size, work.epochs, work.steps, work.record is None
        found = self.planned.get(key)
        if found is None:
            found = self._drawn(clients, round_, work)
            self.planned.clear()
            self.planned[key] = found
        return found

    def _drawn(self, clients: Sequence[int], round_: int, work: Work) -> list[Tensor]:
        own = [self.federation.train[client] for client in clients]
        records, moment = [len(each) for each in own], work.moment(round_)
        widest = min(work.batch_size, int(self.federation.sizes.max()))  # more would only be filled
        sizes = records if work.batch_size == ALL_RECORDS else [widest] * len(own)
        draws = self.draws
        if isinstance(draws, Schedule):
            draw = draws.poisson_batches if work.record else draws.batches
            each = zip(clients, records, sizes, strict=True)
            local = [draw(moment, client, count, work.epochs, size)[: work.steps] for client, count, size in each]
        else:
            draw_all = draws.poisson_batches if work.record else draws.batches
            local = [found[: work.steps] for found in draw_all(moment, clients, records, work.epochs, sizes)]
        # a position of -1 finds the filling behind all records
        at_device = torch.cat([*own, torch.tensor([-1])]).to(self.device)
        firsts = np.cumsum(records) - records
        if len({each.shape for each in local}) > 1:
            return [
                at_device[torch.where(positions < 0, -1, positions + int(first))]
                for positions, first in zip(local, firsts, strict=True)
            ]
        positions = torch.stack(local)
        begins = torch.from_numpy(firsts).to(self.device)[:, None, None]
        return list(at_device[torch.where(positions < 0, -1, positions + begins)])

    def masks(self, clients: Sequence[int], round_: int, work: Work, batches: Sequence[Tensor]) -> list[Tensor] | None:
        """The dropout masks that `plan` gives for each of these clients, whose batches are given."""
        shape = self.mask_shape
        if shape is None:
            return None
        each, moment = zip(clients, batches, strict=True), work.moment(round_)
        return [
            self.draws.dropout_masks(moment, client, tuple(mine.shape), shape, self.keep).to(self.dtype)  # type: ignore[arg-type]
            for client, mine in each
        ]

    @property
    def mask_shape(self) -> tuple[int, ...] | None:
        """The shape of a record's dropout mask; None for a model that takes none."""
        shape = getattr(self.model, "mask_shape", None)
        return None if shape is None else tuple(shape)

    @property
    def keep(self) -> float:
        """The probability with which a unit is kept, of a model that takes masks."""
        return float(self.model.keep)  # type: ignore[arg-type]

    def steps(self, client: int, work: Work) -> int:
        """The number of steps that a client takes."""
        count = work.epochs * -(-self._sizes[client] // work.batch_size)
        return count if work.steps is None else min(count, work.steps)

    def expected_batch(self, client: int, work: Work) -> float:
        """n / ceil(n / B), the divisor of the noised sum under record privacy."""
        records = self._sizes[client]
        return records / -(-records // work.batch_size)

    @cached_property
    def _sizes(self) -> list[int]:
        return self.federation.sizes.tolist()

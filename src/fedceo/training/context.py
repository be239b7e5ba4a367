"""The context of local training: the model, the clients' records and the random choices that a trainer works with."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedceo.data import Federation
from fedceo.experiment.task_table import Task as TaskSettings
from fedceo.tasks import Task, make_task
from fedceo.training.draws import DeviceDraws
from fedceo.training.memory import empty
from fedceo.training.schedule import Schedule
from fedceo.training.work import ALL_RECORDS, Work

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
    """

    model: nn.Module
    federation: Federation
    schedule: Schedule
    device: torch.device
    dtype: torch.dtype
    ready: Tensor | None = None
    task: Task = field(default_factory=lambda: make_task(TaskSettings()))

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
        ready = empty((len(data.x) + 1, *self.federation.shape), self.dtype, self.device)
        ready[-1] = 0
        ready[:-1] = data.inputs(data.x.to(self.device), self.dtype)
        return ready

    @cached_property
    def labels(self) -> Tensor:
        """(n + 1, ...) the records' labels or other targets, on the device, numbers in the precision of training."""
        y = self.federation.y
        targets = torch.cat([y, y.new_zeros(1, *y.shape[1:])]).to(self.device)
        return targets.to(self.dtype) if targets.is_floating_point() else targets

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
        return self.plans([client], round_, work)[0]

    def plans(self, clients: Sequence[int], round_: int, work: Work) -> list[tuple[Tensor, Tensor | None]]:
        """What `plan` gives for each of these clients."""
        moment, filling = work.moment(round_), torch.tensor([-1])
        # a position of -1 finds the filling behind the client's own records
        mine = [torch.cat([self.federation.train[client], filling]) for client in clients]
        records = [len(each) - 1 for each in mine]
        widest = min(work.batch_size, int(self.federation.sizes.max()))  # more would only be filled
        sizes = records if work.batch_size == ALL_RECORDS else [widest] * len(mine)
        draws = self.draws
        if isinstance(draws, Schedule):
            draw = draws.poisson_batches if work.record else draws.batches
            each = zip(clients, records, sizes, strict=True)
            local = [draw(moment, client, count, work.epochs, size) for client, count, size in each]
        else:
            draw_all = draws.poisson_batches if work.record else draws.batches
            local = draw_all(moment, clients, records, work.epochs, sizes)
        at_device = torch.cat(mine).to(self.device).split([len(each) for each in mine])
        indices = [each[positions[: work.steps]] for each, positions in zip(at_device, local, strict=True)]
        shape = getattr(self.model, "mask_shape", None)
        if shape is None:
            return [(each, None) for each in indices]
        keep = float(self.model.keep)  # type: ignore[arg-type]
        masks = (
            draws.dropout_masks(moment, client, (len(each), each.shape[1]), tuple(shape), keep)
            for client, each in zip(clients, indices, strict=True)
        )
        return [(each, mask.to(self.dtype)) for each, mask in zip(indices, masks, strict=True)]

    def noise_generators(self, clients: Sequence[int], round_: int, work: Work) -> list[np.random.Generator]:
        """The generators of these clients' noise under record privacy."""
        return [self.schedule.generator("record noise", work.moment(round_), client) for client in clients]

    def steps(self, client: int, work: Work) -> int:
        """The number of steps that a client takes."""
        count = work.epochs * -(-len(self.federation.train[client]) // work.batch_size)
        return count if work.steps is None else min(count, work.steps)

    def expected_batch(self, client: int, work: Work) -> float:
        """n / ceil(n / B), the divisor of the noised sum under record privacy."""
        records = len(self.federation.train[client])
        return records / -(-records // work.batch_size)

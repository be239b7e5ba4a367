"""The context of local training: the model, the clients' records and the random choices that a trainer works with."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fedceo.data import Federation
from fedceo.training.draws import DeviceDraws
from fedceo.training.schedule import Schedule
from fedceo.training.work import ALL_RECORDS, Work

MOST_READY_BYTES = 2**30
"""Records are normalised once and kept up to this size (CIFAR-10 takes 0.6 GiB in float32), else batch by batch.

On a GPU they may take an eighth of its memory.
"""


@dataclass(frozen=True)
class TrainingContext:
    """Where and on what a trainer works.

    Attributes:
        ready: what `inputs` would make, where somebody has made it already.
    """

    model: nn.Module
    federation: Federation
    schedule: Schedule
    device: torch.device
    dtype: torch.dtype
    ready: Tensor | None = None

    @cached_property
    def draws(self) -> Schedule | DeviceDraws:
        """Where batches and dropout masks come from: the Schedule on a CPU, the device itself otherwise."""
        return self.schedule if self.device.type == "cpu" else DeviceDraws(self.schedule, self.device)

    @cached_property
    def inputs(self) -> Tensor | None:
        """All records as the model takes them and a last one of zeros, on its device, where they are few enough."""
        if self.ready is not None:
            return self.ready
        data, most = self.federation, MOST_READY_BYTES
        if self.device.type == "cuda":
            most = torch.cuda.get_device_properties(self.device).total_memory // 8
        if data.x.numel() * self.dtype.itemsize > most:
            return None
        ready = torch.zeros(len(data.x) + 1, *self.federation.shape, dtype=self.dtype, device=self.device)
        ready[:-1] = data.inputs(data.x.to(self.device), self.dtype)
        return ready

    @cached_property
    def _labels(self) -> Tensor:
        return torch.cat([self.federation.y, self.federation.y.new_zeros(1)]).to(self.device)

    @property
    def blank(self) -> int:
        """The place of a record of zeros, which fills batches up."""
        return len(self.federation.x)

    def records(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """The federation's records at some places as the model takes them, (..., *shape), and their labels."""
        labels = self._labels[places]
        if self.inputs is not None:
            # index_select is three times faster here than the same by brackets
            flat = self.inputs.index_select(0, places.flatten())
            return flat.view(*places.shape, *self.federation.shape), labels
        here = places.to(self.federation.x.device)
        inputs = self.federation.inputs(self.federation.x[here.clamp_max(self.blank - 1)].to(self.device), self.dtype)
        filling = (places == self.blank).view(*places.shape, *(1,) * len(self.federation.shape))
        return inputs.masked_fill_(filling, 0.0), labels

    def make_ready(self) -> bool:
        """Normalises all records now, where they may be kept; whether `records` then reads nothing but the device."""
        return self.inputs is not None

    def plan(self, client: int, round_: int, work: Work) -> tuple[Tensor, Tensor | None]:
        """A client's batches, (steps, batch) places in the federation's records with -1 for none, and dropout masks."""
        mine = self.federation.train[client].to(self.device)
        draw = self.draws.poisson_batches if work.record else self.draws.batches
        moment = work.moment(round_)
        size = len(mine) if work.batch_size == ALL_RECORDS else work.batch_size
        local = draw(moment, client, len(mine), work.epochs, size)[: work.steps]
        places = torch.where(local >= 0, mine[local.clamp_min(0)], -1)
        shape = getattr(self.model, "mask_shape", None)
        if shape is None:
            return places, None
        keep = float(self.model.keep)  # type: ignore[arg-type]
        masks = self.draws.dropout_masks(moment, client, (len(places), places.shape[1]), tuple(shape), keep)
        return places, masks.to(self.dtype)

    def expected_batch(self, client: int, work: Work) -> float:
        """n / ceil(n / B): what the noised sum is divided by under record privacy."""
        records = len(self.federation.train[client])
        return records / -(-records // work.batch_size)

"""A federation: who holds which records, and the public test set everybody is measured on."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Federation:
    """Records are stored once; clients are lists of places in them.

    Attributes:
        name: what the data is called in tables.
        x: (records, *shape), uint8 pixels or float32 values.
        y: (records,) int64 labels from 0.
        train: for each client, the places of the records it trains on.
        validation: places of the records kept out of training to choose rounds by, all clients' together.
        local_test: for each client, the places of its own test records; empty tensors where none are kept.
        test_x, test_y: the public test set, like x and y.
        classes: number of labels.
        mean, std: per channel; inputs are (x / 255 - mean) / std for uint8 and (x - mean) / std for float32.
    """

    name: str
    x: Tensor
    y: Tensor
    train: list[Tensor]
    validation: Tensor
    local_test: list[Tensor]
    test_x: Tensor
    test_y: Tensor
    classes: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    @property
    def clients(self) -> int:
        """N."""
        return len(self.train)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record: (channels, height, width) or (features,)."""
        return tuple(self.x.shape[1:])

    def inputs(self, records: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Raw records, (..., *shape), as the model takes them: scaled and normalised."""
        scale = 255.0 if records.dtype == torch.uint8 else 1.0
        rest = (1,) * (len(self.shape) - 1)
        mean = torch.tensor(self.mean, dtype=dtype, device=records.device).view(-1, *rest)
        std = torch.tensor(self.std, dtype=dtype, device=records.device).view(-1, *rest)
        return records.to(dtype, copy=True).mul_(1 / (scale * std)).sub_(mean / std)

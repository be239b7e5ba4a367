"""A small convolutional network for quick work, down to images of 4x4."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedceo.errors import UsageError
from fedceo.models.registry import MODELS

GROUP = 4
"""Channels that are normalised together."""


@MODELS.register("small-cnn", "two small convolutions and a linear layer, for quick work")
class SmallCNN(nn.Module):
    """A network of conv 16 -> pool -> conv 32 -> pool -> classes; 6,090 parameters for 1x8x8 and 10 classes.

    Bounded activations and norms within a record keep gradients small and alike, which helps under clipping and noise
    (Papernot et al. 2021).
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        activation: Literal["relu", "tanh"] = "relu",
        norm: Literal["none", "group"] = "none",
    ) -> None:
        super().__init__()
        if len(shape) != 3 or min(shape[1:]) < 4:
            raise UsageError(
                f"model.name: small-cnn takes images of at least 4x4, channels first, got records of shape {shape}"
            )
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.activate = torch.relu if activation == "relu" else torch.tanh
        self.norms = nn.ModuleList(nn.GroupNorm(n // GROUP, n) for n in (16, 32)) if norm == "group" else None
        self.fc = nn.Linear(32 * (height // 4) * (width // 4), classes)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, channels, height, width)."""
        for convolve, normalise in zip((self.conv1, self.conv2), self.norms or (None, None), strict=True):
            x = convolve(x)
            if normalise is not None:
                x = normalise(x)
            x = F.max_pool2d(self.activate(x), 2)
        return self.fc(x.flatten(1))

"""A small convolutional network for quick work, down to images of 4x4."""

import torch.nn.functional as F
from torch import Tensor, nn

from fedceo.errors import UsageError
from fedceo.models.registry import MODELS


@MODELS.register("small-cnn", "two small convolutions and a linear layer, for quick work")
class SmallCNN(nn.Module):
    """A network of conv 16 -> pool -> conv 32 -> pool -> classes; 6,090 parameters for 1x8x8 and 10 classes."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if len(shape) != 3 or min(shape[1:]) < 4:
            raise UsageError(f"model.name: small-cnn takes images of at least 4x4, got records of shape {shape}")
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.fc = nn.Linear(32 * (height // 4) * (width // 4), classes)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, channels, height, width)."""
        x = F.max_pool2d(self.conv1(x).relu(), 2)
        x = F.max_pool2d(self.conv2(x).relu(), 2)
        return self.fc(x.flatten(1))

"""AlexNet for 32x32 images, without dropout, in its two common forms: the paper does not say which it means."""

import torch.nn.functional as F
from torch import Tensor, nn

from fedceo.errors import UsageError
from fedceo.models.registry import MODELS


@MODELS.register(
    "alexnet",
    "five convolutions and one linear layer for 32x32, 2,472,266 parameters on CIFAR-10 (form B)",
)
class AlexNet(nn.Module):
    """The slim form, B: a first convolution of 11x11 with stride 4 and one linear layer.

    conv 64 -> pool -> conv 192 (5x5) -> pool -> conv 384 -> conv 256 -> conv 256 -> pool -> classes; 2,472,266
    parameters for 3x32x32 and 10 classes.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels = _channels(shape)
        self.conv1 = nn.Conv2d(channels, 64, kernel_size=11, stride=4, padding=5)
        self.conv2 = nn.Conv2d(64, 192, kernel_size=5, padding=2)
        self.conv3 = nn.Conv2d(192, 384, kernel_size=3, padding=1)
        self.conv4 = nn.Conv2d(384, 256, kernel_size=3, padding=1)
        self.conv5 = nn.Conv2d(256, 256, kernel_size=3, padding=1)
        self.fc = nn.Linear(256, classes)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, channels, 32, 32)."""
        x = F.max_pool2d(self.conv1(x).relu(), 2)
        x = F.max_pool2d(self.conv2(x).relu(), 2)
        x = self.conv4(self.conv3(x).relu()).relu()
        x = F.max_pool2d(self.conv5(x).relu(), 2)
        return self.fc(x.flatten(1))


@MODELS.register(
    "alexnet-a",
    "five convolutions and three linear layers for 32x32, 23,272,266 parameters on CIFAR-10 (form A)",
)
class WideAlexNet(nn.Module):
    """The wide form, A: convolutions of 3x3 throughout and three linear layers.

    conv 64 (stride 2) -> pool -> conv 192 -> pool -> conv 384 -> conv 256 -> conv 256 -> pool -> 4096 -> 4096 ->
    classes; 23,272,266 parameters for 3x32x32 and 10 classes.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels = _channels(shape)
        self.conv1 = nn.Conv2d(channels, 64, kernel_size=3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(64, 192, kernel_size=3, padding=1)
        self.conv3 = nn.Conv2d(192, 384, kernel_size=3, padding=1)
        self.conv4 = nn.Conv2d(384, 256, kernel_size=3, padding=1)
        self.conv5 = nn.Conv2d(256, 256, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(256 * 2 * 2, 4096)
        self.fc2 = nn.Linear(4096, 4096)
        self.fc3 = nn.Linear(4096, classes)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, channels, 32, 32)."""
        x = F.max_pool2d(self.conv1(x).relu(), 2)
        x = F.max_pool2d(self.conv2(x).relu(), 2)
        x = self.conv4(self.conv3(x).relu()).relu()
        x = F.max_pool2d(self.conv5(x).relu(), 2)
        x = self.fc1(x.flatten(1)).relu()
        return self.fc3(self.fc2(x).relu())


def _channels(shape: tuple[int, ...]) -> int:
    if len(shape) != 3 or shape[1:] != (32, 32):
        raise UsageError(f"model.name: alexnet takes images of 32x32, got records of shape {shape}")
    return shape[0]

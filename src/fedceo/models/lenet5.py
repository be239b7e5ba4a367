"""The paper's LeNet-5 (appendix C.1), with the ReLU after each convolution that its listing leaves out."""

import torch.nn.functional as F
from torch import Tensor, nn

from fedceo.errors import UsageError
from fedceo.models.registry import MODELS


@MODELS.register(
    "lenet5",
    "two convolutions and three linear layers, 1,141,194 parameters on CIFAR-10 (the paper's LeNet-5)",
)
class LeNet5(nn.Module):
    """A network of conv 32 -> pool -> conv 64 -> pool -> 512 -> 512 -> classes.

    It has 1,141,194 parameters for 3x32x32 and 10 classes.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if len(shape) != 3 or min(shape[1:]) < 16:
            raise UsageError(
                f"model.name: lenet5 takes images of at least 16x16, channels first, got records of shape {shape}"
            )
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 32, kernel_size=5)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=5)
        rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
        self.fc1 = nn.Linear(64 * rows * columns, 512)
        self.fc2 = nn.Linear(512, 512)
        self.fc3 = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, channels, height, width)."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))

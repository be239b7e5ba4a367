"""The sigmoid LeNet of "Deep Leakage from Gradients" (Zhu et al. 2019), which is easy to attack and hard to train."""

from torch import Tensor, nn

from fedceo.errors import UsageError
from fedceo.models.registry import MODELS

CHANNELS = 12
BOUND = 0.5


@MODELS.register(
    "dlg-lenet",
    "three convolutions with sigmoids and a linear layer, the network that gradient inversion is tried on",
)
class DLGLeNet(nn.Module):
    """Three 5x5 convolutions with sigmoids -> classes; weights and biases U(-0.5, 0.5).

    15,826 parameters for 3x32x32 and 10 classes. Twice differentiable, unlike networks of ReLUs: an attacker who
    matches gradients by gradient descent needs the second derivative.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if len(shape) != 3:
            raise UsageError(f"model.name: dlg-lenet takes images, got records of shape {shape}")
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, CHANNELS, kernel_size=5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(CHANNELS, CHANNELS, kernel_size=5, stride=2, padding=2)
        self.conv3 = nn.Conv2d(CHANNELS, CHANNELS, kernel_size=5, stride=1, padding=2)
        rows, columns = (-(-side // 4) for side in (height, width))
        self.fc = nn.Linear(CHANNELS * rows * columns, classes)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -BOUND, BOUND)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, channels, height, width)."""
        x = self.conv1(x).sigmoid()
        x = self.conv2(x).sigmoid()
        x = self.conv3(x).sigmoid()
        return self.fc(x.flatten(1))

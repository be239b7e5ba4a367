"""An LSTM for short texts whose tokens are hashed into buckets (Sentiment140).

The cell is written out, because torch.func cannot run torch's own for many records or many clients at once.
"""

from math import sqrt

import numpy as np
import torch
from torch import Tensor, nn

from fedceo.errors import UsageError
from fedceo.models.registry import MODELS

BUCKETS = 10_000
WIDTH = 100
UNITS = 100


@MODELS.register("lstm", "two LSTM layers of 100 over a frozen table of hashed tokens, 164,692 parameters on sent140")
class LSTM(nn.Module):
    """A network of frozen embedding (100) -> LSTM 100 -> LSTM 100, at the last token -> 30 -> classes.

    It has 164,692 parameters for 2 classes.

    Tokens are numbered from 1 to 10,000; 0 is padding at the end. The embedding is a fixed table of standard normal
    numbers, the same in every experiment, and no parameter: it is neither trained, noised nor smoothed.
    """

    table: Tensor

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if len(shape) != 1:
            raise UsageError(f"model.name: lstm takes rows of tokens, got records of shape {shape}")
        drawn = np.random.default_rng(0xE3BED).standard_normal((BUCKETS + 1, WIDTH), dtype=np.float32)
        drawn[0] = 0
        self.register_buffer("table", torch.from_numpy(drawn), persistent=False)
        self.lstm1 = Layer(WIDTH, UNITS)
        self.lstm2 = Layer(UNITS, UNITS)
        self.fc1 = nn.Linear(UNITS, 30)
        self.fc2 = nn.Linear(30, classes)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, length) tokens."""
        x = x.long()
        last = (x != 0).sum(1).sub(1).clamp_min(0)
        states = self.lstm2(self.lstm1(self.table[x]))
        at_last = torch.arange(x.shape[1], device=x.device) == last[:, None]
        h = (states * at_last[:, :, None]).sum(1)
        return self.fc2(self.fc1(h).relu())


class Layer(nn.Module):
    """One layer like those of torch.nn.LSTM, with the same parameters and the same distribution of initial values."""

    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.units = units
        self.weight_ih = nn.Parameter(torch.empty(4 * units, width))
        self.weight_hh = nn.Parameter(torch.empty(4 * units, units))
        self.bias_ih = nn.Parameter(torch.empty(4 * units))
        self.bias_hh = nn.Parameter(torch.empty(4 * units))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / sqrt(units), 1 / sqrt(units))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, length, width) -> hidden states, (B, length, units)."""
        given = x @ self.weight_ih.mT + (self.bias_ih + self.bias_hh)
        h = c = x.new_zeros(x.shape[0], self.units)
        states = []
        for step in given.unbind(1):
            enter, forget, change, leave = (step + h @ self.weight_hh.mT).chunk(4, 1)
            c = forget.sigmoid() * c + enter.sigmoid() * change.tanh()
            h = leave.sigmoid() * c.tanh()
            states.append(h)
        return torch.stack(states, 1)

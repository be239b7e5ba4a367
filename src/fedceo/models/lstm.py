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

    Tokens are numbered from 1 to 10,000; 0 is padding at the end.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if len(shape) != 1:
            raise UsageError(f"model.name: lstm takes rows of tokens, got records of shape {shape}")
        self.embedding = Embedding()
        self.lstm1 = Layer(WIDTH, UNITS)
        self.lstm2 = Layer(UNITS, UNITS)
        self.at_last = AtLast()
        self.fc1 = nn.Linear(UNITS, 30)
        self.fc2 = nn.Linear(30, classes)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, length) tokens."""
        states = self.lstm2(self.lstm1(self.embedding(x)))
        return self.fc2(self.fc1(self.at_last(states, x)).relu())


class Embedding(nn.Module):
    """A fixed table of standard normal numbers, the same in every experiment.

    It is no parameter: neither trained, noised nor smoothed.
    """

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        drawn = np.random.default_rng(0xE3BED).standard_normal((BUCKETS + 1, WIDTH), dtype=np.float32)
        drawn[0] = 0
        self.register_buffer("table", torch.from_numpy(drawn), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., length) tokens -> (..., length, width)."""
        return self.table[x.long()]


class AtLast(nn.Module):
    """The state after the last token of each text."""

    def forward(self, states: Tensor, x: Tensor) -> Tensor:
        """states: (B, length, units); x: (B, length) tokens -> (B, units)."""
        at_last = torch.arange(x.shape[1], device=x.device) == last_token(x)[:, None]
        return (states * at_last[:, :, None]).sum(1)


def last_token(x: Tensor) -> Tensor:
    """(...) the place of the last token in (..., length) tokens; 0 where there is none."""
    return (x.long() != 0).sum(-1).sub(1).clamp_min(0)


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

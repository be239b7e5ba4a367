"""A small recurrent network that predicts the next token of a sequence, for task "next-token"."""

from torch import Tensor, nn

from fedceo.errors import UsageError
from fedceo.models.lstm import Layer
from fedceo.models.registry import MODELS

WIDTH = 16
UNITS = 64


@MODELS.register("char-lstm", "one LSTM layer of 64 over trained tokens of width 16, logits at every token")
class CharLSTM(nn.Module):
    """A network of embedding (16) -> LSTM 64 -> linear (tokens), at every place of a sequence.

    It has 28,930 parameters for the 98 tokens of characters.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if len(shape) != 1:
            raise UsageError(f"model.name: char-lstm takes rows of tokens, got records of shape {shape}")
        self.embedding = nn.Embedding(classes, WIDTH)
        self.lstm = Layer(WIDTH, UNITS)
        self.output = nn.Linear(UNITS, classes)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, length) tokens -> (B, length, tokens)."""
        return self.output(self.lstm(self.embedding(x.long())))

"""Texts as sequences of characters, whose next character is to be predicted.

source = from_texts(["To be, or not to be", ...], client=["Hamlet", ...])

The alphabet is fixed: one made from the clients' texts would be a release that nobody accounts for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from fedceo.data.arrays import owners_of
from fedceo.data.source import Source, with_test_set
from fedceo.errors import UsageError

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
"""The characters that have a token of their own, numbered from 2; 1 is any other, 0 the filling before and after."""
TOKENS = len(ALPHABET) + 2
LENGTH = 64
"""Characters of a record, unless another number is asked for."""
NOTHING_TO_PREDICT = -1
"""The target after the end of a text."""


def from_texts(
    texts: Sequence[str], *, client: npt.ArrayLike | None = None, length: int = LENGTH, name: str = "texts"
) -> Source:
    """A source whose records are the pieces of the texts, (records, length) tokens, and whose targets are what follows.

    The first character of a piece is predicted from none, so that every character of a text is predicted once.

    Args:
        client: (texts,) integers or strings: whose text each one is.
        length: the most characters of a piece.
    """
    wrong = next((text for text in texts if not isinstance(text, str)), None)
    if wrong is not None:
        raise UsageError(f"{name}: {wrong!r}, expected a text")
    owners, ids = (None, ()) if client is None else owners_of(client, f"{name}: client")
    if owners is not None and len(owners) != len(texts):
        raise UsageError(f"{name}: {len(texts)} texts but {len(owners)} clients")
    pieces = [(number, piece) for number, text in enumerate(texts) for piece in _pieces(encoded(text), length)]
    if not pieces:
        raise UsageError(f"{name}: no text has a character")
    y = np.full((len(pieces), length), NOTHING_TO_PREDICT, np.int64)
    x = np.zeros((len(pieces), length), np.int32)
    for row, (_, piece) in enumerate(pieces):
        y[row, : len(piece)] = piece
        x[row, 1 : len(piece)] = piece[:-1]
    if owners is not None:
        owners = owners[torch.tensor([number for number, _ in pieces])]
    source = with_test_set(name, torch.from_numpy(x), torch.from_numpy(y), TOKENS, owners)
    return replace(source, client_names=ids)


def encoded(text: str) -> list[int]:
    """The tokens of a text."""
    return [NUMBERS.get(character, 1) for character in text]


NUMBERS = {character: number for number, character in enumerate(ALPHABET, 2)}


def _pieces(tokens: list[int], length: int) -> Iterator[list[int]]:
    for first in range(0, len(tokens), length):
        yield tokens[first : first + length]

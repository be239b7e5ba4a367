"""Torch's threads: how many an operation may take."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

FEW = 2**20
"""Numbers on which an operation ends sooner than a second thread that helps with it goes to sleep again."""


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let torch use one thread for each product inside, also in threads that begin here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def threads_for(numbers: int) -> Iterator[None]:
    """Let torch use one thread inside where operations are on few numbers.

    A thread that has helped with an operation waits for the next one at full speed, for milliseconds. In a round of a
    small model that is most of what a core could have trained in.
    """
    with one_torch_thread() if numbers <= FEW else nullcontext():
        yield

"""Work that runs beside other work on a GPU: a second stream, which in a captured step is a second branch of its graph.

Most kernels of a step leave a part of the machine idle, some waiting for memory and others for products, and all of
them at their ends. What does not depend on each other is therefore queued on two streams. Memory is safe by order: work
beside begins after all that was queued before it, and whoever reads its results joins first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import torch


class Branch:
    """A second stream beside the current one."""

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Queue what is inside after all that was queued so far, and beside what will be."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let what is queued from now on wait for all that was queued beside."""
        torch.cuda.current_stream().wait_stream(self._stream)

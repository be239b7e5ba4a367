"""Memory that is freed in one step of training and asked for again in the next, and memory of many pages."""

import ctypes
import mmap
import weakref
from collections.abc import Sequence
from contextlib import suppress
from math import prod

import torch
from torch import Tensor

LARGEST_LEARNED = 2**25
"""Bytes of the largest buffer whose freeing teaches glibc anything."""


def keep_freed_buffers() -> None:
    """Let the C library keep what a step frees, instead of giving it back to the system page by page.

    glibc maps each large buffer anew, and every page of it is zeroed by the system when it is first written: up to two
    thirds of a step's CPU time. It stops doing so for sizes that it has seen freed, up to 32 MiB, and then trims its
    heap only beyond twice that size. So one such buffer is taken and freed; it is never written, and costs nothing. No
    setting of the process is touched, what a user has set with MALLOC_* stays, and other C libraries are not concerned.
    """
    torch.empty(LARGEST_LEARNED - 2**13, dtype=torch.uint8)  # less the C library's own words about a buffer


LARGE = 2**22
"""Bytes from which a buffer is worth pages of its own, which are 2 MiB on x86."""


class Buffers:
    """Large buffers on a CPU, in large pages where the system has them, each taken again once nobody holds it.

    Every page costs the system time when it is first written, and the processor some when it reads here and there.
    """

    def __init__(self) -> None:
        self._spare: list[mmap.mmap] = []

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """torch.empty in such a buffer, where it is large."""
        count = prod(shape)
        size = count * dtype.itemsize
        if device.type != "cpu" or size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.empty(*shape, dtype=dtype, device=device)
        memory = next((each for each in self._spare if size <= len(each) <= 2 * size), None)
        if memory is None:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError):
                memory.madvise(mmap.MADV_HUGEPAGE)
        else:
            self._spare.remove(memory)
        held = (ctypes.c_char * len(memory)).from_buffer(memory)
        weakref.finalize(held, self._spare.append, memory).atexit = False  # the tensor and its views hold it
        return torch.frombuffer(held, dtype=dtype, count=count).view(*shape)

    def let_go(self) -> None:
        """Give back what nobody holds."""
        self._spare.clear()


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """torch.empty in large pages, where it is large."""
    return Buffers().empty(shape, dtype, device)

"""Memory that is freed in one step of training and asked for again in the next, and memory of many pages."""

import mmap
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


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """torch.empty, but that the system is asked for large pages where a CPU's buffer would have a thousand small ones.

    Each page costs the system time when it is first written, and the processor some when it reads here and there. Where
    there are no such pages the memory is that which torch would have got.
    """
    size = prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(*shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)

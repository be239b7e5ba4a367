"""Memory that is freed in one step of training and asked for again in the next."""

import torch

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

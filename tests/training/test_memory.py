"""Buffers that a step frees stay with the process, and large ones have large pages, as the number of pages shows."""

import mmap
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedceo.training.memory import Buffers, empty

STEPS = """
import resource, sys, torch
from concurrent.futures import ThreadPoolExecutor
from fedceo.training.memory import keep_freed_buffers
if sys.argv[1] == "kept":
    keep_freed_buffers()
def step(_):
    buffers = [torch.ones(2**20) for _ in range(10)]  # 40 MiB
def faults():
    with ThreadPoolExecutor(1) as pool:
        list(pool.map(step, range(2)))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        list(pool.map(step, range(20)))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults())
"""


def faults(how: str) -> int:
    """Pages that twenty steps of 40 MiB in a thread ask for, after two that are not counted."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    environment["OMP_NUM_THREADS"] = "1"  # two threads that fill a buffer share its faults as it happens
    done = subprocess.run(
        [sys.executable, "-c", STEPS, how], env=environment, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep memory as they do")
def test_freed_buffers_are_kept() -> None:
    assert 2 * faults("kept") < faults("as it is")


PAGES = """
import resource, torch
from fedceo.training.memory import Buffers, empty
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
empty((2**24,), torch.float32, torch.device("cpu")).fill_(1.0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not ENABLED.exists() or "[never]" in ENABLED.read_text(), reason="the system has no large pages")
def test_large_buffers_have_large_pages() -> None:
    done = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2**26 / mmap.PAGESIZE / 2


@pytest.mark.parametrize("shape", [(3, 5), (0,), (1, 2**20), (3, 2**20 + 1), (2**12, 3, 2**8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_buffers_are_tensors_like_others(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Also after the last name for them is gone but that of a view."""
    made = empty(shape, dtype, torch.device("cpu"))
    assert made.shape == shape and made.dtype == dtype and made.is_contiguous()
    row = made.fill_(2.0)[-1:]
    del made
    assert (row == 2).all()


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no large pages")
def test_a_buffer_is_taken_again_once_nobody_holds_it() -> None:
    buffers, size, cpu = Buffers(), 2**21, torch.device("cpu")
    first = buffers.empty((size,), torch.float32, cpu)
    place, row = first.data_ptr(), first.fill_(3.0)[5:7]
    del first
    other = buffers.empty((size,), torch.float32, cpu)
    assert other.data_ptr() != place, "a view holds it"
    other.fill_(4.0)
    assert (row == 3).all()
    del row
    again = buffers.empty((2, size // 2 - 100), torch.float32, cpu)  # a little smaller
    assert again.data_ptr() == place
    del again, other
    assert len(buffers._spare) == 2
    buffers.let_go()
    assert buffers.empty((size,), torch.float32, cpu).fill_(1.0).sum() == size

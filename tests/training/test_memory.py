"""Buffers that a step frees stay with the process, as the number of pages that it asks the system for shows."""

import os
import platform
import subprocess
import sys

import pytest

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
    done = subprocess.run(
        [sys.executable, "-c", STEPS, how], env=environment, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep memory as they do")
def test_freed_buffers_are_kept() -> None:
    assert 2 * faults("kept") < faults("as it is")

"""The kernels of a GPU, where there is none: Triton's interpreter runs them on a CPU."""

import os
import subprocess
import sys

import pytest

from fedceo.training.draws import HAS_TRITON


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
def test_kernels_agree_with_what_they_take_the_place_of() -> None:
    """Gradients of chains, batches, steps, random numbers: all kernels of training/cuda."""
    program = [sys.executable, "-m", "tests.support.interpreted_kernels"]
    done = subprocess.run(program, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.count("highest: ") == done.stdout.count("high: ") == 14

"""Runs whose disk fails or whose process is killed end as if nothing had happened; tools/torture.py tries much more."""

import os
import random
from pathlib import Path

import pytest

from tests.support.failing_disk import How
from tests.support.survival import Survival, simulated

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


@pytest.mark.parametrize("how", ["full", "exit"])
def test_a_few_steps_of_writing_that_fail(tmp_path: Path, how: How) -> None:
    survival = Survival(simulated, tmp_path)
    for step in range(3, survival.steps(), 29):
        survival.fail(step, how)
    assert survival.failures == []


@pytest.mark.slow
def test_many_steps_and_many_kills(tmp_path: Path) -> None:
    survival = Survival(simulated, tmp_path)
    rng = random.Random(2)
    killed = sum(survival.kill(3, rng) for _ in range(15))
    assert killed > 15
    for step in range(1, survival.steps() + 1, 4):
        survival.fail(step, "exit")
        survival.fail(step, "full")
    assert survival.failures == []

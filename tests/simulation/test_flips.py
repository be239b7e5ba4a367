"""Single bytes of a run's files that are not as they were written: refused in one line, or harmless."""

import random
from pathlib import Path

import pytest

from tests.support.flips import FINISHED, UNFINISHED, Flips, interrupted, resumed
from tests.support.survival import simulated


def flipped(folder: Path, tried: Flips, count: int) -> None:
    files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    rng = random.Random(3)
    for number in range(count):
        tried.flip(files[number % len(files)], rng)
    assert tried.failures == []
    assert tried.refused + tried.harmless == count and tried.refused > count / 2


@pytest.mark.parametrize("count", [8, pytest.param(80, marks=pytest.mark.slow)])
def test_flips_in_a_finished_run(tmp_path: Path, count: int) -> None:
    simulated(tmp_path / "run")
    flipped(tmp_path / "run", Flips(tmp_path / "run", FINISHED), count)


@pytest.mark.parametrize("count", [7, pytest.param(70, marks=pytest.mark.slow)])
def test_flips_in_an_unfinished_run(tmp_path: Path, count: int) -> None:
    interrupted(tmp_path / "run")
    flipped(tmp_path / "run", Flips(tmp_path / "run", UNFINISHED | {"resume": resumed(simulated)}), count)

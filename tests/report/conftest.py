"""Run folders that the tests of figures and pages share."""

from pathlib import Path

import pytest

import fedceo
from tests.support.recorded_runs import TABLE


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with: fedceo/seed-0 and fedceo/seed-1 (recorded), free (no privacy), stopped (after round 4)."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        fedceo.run(TABLE | {"seed": seed}, out=root / "fedceo" / f"seed-{seed}")
    free = {"privacy": {"mechanism": "none"}, "method": {"name": "fedavg"}}
    fedceo.run(TABLE | free, out=root / "free")
    rounds = iter(range(1, 9))
    fedceo.run(TABLE | {"record": {}}, out=root / "stopped", should_stop=lambda: next(rounds) == 4)
    return root

"""The grid in docs/studies.md has the cells that the page says it has."""

import re
from pathlib import Path

from fedceo.studies.cells import find_experiments

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "studies.md").read_text()
GRID, EXCEPTIONS = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_cells_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(GRID)
    found = find_experiments(tmp_path / "my.toml", [])
    assert list(found) == ["low/udp-fedavg", "low/fedceo", "high/udp-fedavg", "high/fedceo"]
    assert all(f"`{name}`" in PAGE for name in found)
    assert [each.method.model_dump().get("strength") for each in found.values()] == [None, 20.0, None, 5.0]


def test_the_exceptions_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(GRID + EXCEPTIONS)
    found = find_experiments(tmp_path / "my.toml", [])
    assert list(found) == ["low/fedceo", "high/udp-fedavg", "high/fedceo", "without-privacy/fedavg"]
    assert [each.train.rounds == 30 for each in found.values()] == [False, False, True, False]

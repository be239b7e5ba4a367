"""The map names every file of the package, no file that is gone, and the arrows of the contracts."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "fedceo"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
ONE_FILE_EACH = ("data/sets", "methods", "models", "tasks", "training/cuda", "deploy/app")
"""Folders of which the map has the purpose and the files that differ from the others, not every file."""
NAMED = set(re.findall(r"`([\w/]+\.(?:py|toml|html))`", PAGE))


def test_every_file_is_on_the_map() -> None:
    files = [file for file in SOURCE.rglob("*.py") if file.name != "__init__.py"]
    missing = {
        str(file.relative_to(SOURCE))
        for file in files
        if file.name not in NAMED and str(file.parent.relative_to(SOURCE)) not in ONE_FILE_EACH
    }
    assert not missing


def test_every_room_is_on_the_map() -> None:
    rooms = {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()}
    assert set(re.findall(r"^\| `(\w+)/` \|", PAGE, re.MULTILINE)) == rooms


def test_no_file_on_the_map_is_gone() -> None:
    there = {file.name for file in SOURCE.rglob("*")}
    gone = {name for name in NAMED if name not in there and not any((root / name).exists() for root in (ROOT, SOURCE))}
    assert not gone


def test_the_arrows_are_those_of_the_contracts() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    assert "\n".join(f"    {layer}" for layer in layers) in PAGE

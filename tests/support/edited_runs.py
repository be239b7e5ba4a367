"""Changes to a run's files, with checksums that fit, and folders as they were before there were checksums."""

import json
import re
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from fedceo.simulation.durable import IN_TOML, ZEROS, sealed
from fedceo.simulation.folder import RunFolder


def edit_result(folder: Path, **changes: Any) -> None:
    """Change fields of result.json; None takes a field out."""
    result = RunFolder(folder).result() | changes
    RunFolder(folder).save_result({name: value for name, value in result.items() if changes.get(name, 0) is not None})


def edit_experiment(folder: Path, old: str, new: str) -> None:
    """Replace a text in experiment.toml that must be there."""
    _, _, text = (folder / "experiment.toml").read_text().partition("\n")
    assert old in text
    content = f"# sha256: {ZEROS}\n{text.replace(old, new)}".encode()
    (folder / "experiment.toml").write_bytes(sealed(content, IN_TOML))


def take_checksums_out(folder: Path) -> None:
    """Leave a folder as versions up to 0.2.0 wrote it."""
    for file in folder.rglob("*"):
        if file.suffix == ".toml":
            file.write_text(file.read_text().partition("\n")[2])
        elif file.suffix == ".jsonl":
            file.write_text(re.sub(r', "sha256": "\w+"}', "}", file.read_text()))
        elif file.suffix == ".json":
            table = json.loads(file.read_text())
            del table["sha256"]
            file.write_text(json.dumps(table, indent=2))
        elif file.suffix == ".safetensors":
            save_file(load_file(file), file, _without_checksum(file))


def _without_checksum(file: Path) -> dict[str, str] | None:
    content = file.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return {name: text for name, text in header["__metadata__"].items() if name != "sha256"} or None

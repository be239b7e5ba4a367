"""A module of a user's own, as a test writes it into the working directory."""

import sys
from pathlib import Path

import pytest


def module_here(name: str, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The text as a module of the user's own in the working directory, under a name that no other test has."""
    unlike_others = f"{name}_{folder.name.replace('-', '_')}"
    (folder / f"{unlike_others}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return unlike_others

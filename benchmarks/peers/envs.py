"""The peers' virtual environments, made on first use under benchmarks/.envs/ and kept.

torch comes first and is pinned to the version this interpreter has: every peer wants torch, none says which.
"""

import subprocess
import sys
import venv
from pathlib import Path

import torch

FOLDER = Path(__file__).resolve().parent.parent / ".envs"
REQUIREMENTS = {"pfl": "pfl==0.6.0", "flower": "flwr[simulation]==1.41.0"}


def interpreter(name: str) -> str:
    """The Python of an environment; "own" is the one that runs this."""
    if name == "own":
        return sys.executable
    home = FOLDER / name
    python = home / "bin" / "python"
    pin = f"torch=={torch.__version__.split('+')[0]}"
    recipe = f"{pin}\n{REQUIREMENTS[name]}\n"
    ready = home / "ready.txt"
    if not ready.exists() or ready.read_text() != recipe:
        print(f"making the environment of {name} ...", flush=True)
        venv.create(home, clear=True, symlinks=True, with_pip=True)
        constraint = home / "constraint.txt"
        constraint.write_text(f"{pin}\n")
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for wish in (pin, REQUIREMENTS[name]):
            subprocess.run([*install, "--constraint", str(constraint), wish], check=True)
        ready.write_text(recipe)
    return str(python)

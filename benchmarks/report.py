"""The header of every benchmark: machine, versions, date; and where its numbers and pictures go."""

import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

from fedceo.simulation.summary import machine

RESULTS = Path(__file__).resolve().parent / "results"


def about(device: str = "cpu") -> dict[str, Any]:
    """The machine, by its processor or GPU, the versions and the day."""
    return {
        "machine": machine(torch.device(device)),
        "cores": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def write(numbers: dict[str, Any], out: Path, device: str = "cpu") -> None:
    """Numbers as JSON, with what `about` says."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(about(device) | numbers, indent=2) + "\n")
    print(f"\nwritten: {out}")

"""What every benchmark says of itself: machine, versions, date; and where its numbers and pictures go."""

import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).resolve().parent / "results"


def about() -> dict[str, Any]:
    """The machine, the versions and the day."""
    return {
        "machine": processor(),
        "cores": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def processor() -> str:
    """The processor's name where the system tells it, else its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def write(numbers: dict[str, Any], out: Path) -> None:
    """Numbers as JSON, with what `about` says."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(about() | numbers, indent=2) + "\n")
    print(f"\nwritten: {out}")

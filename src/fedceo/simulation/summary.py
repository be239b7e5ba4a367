"""What a finished run says of its accuracy and of the machine, each number named."""

import platform
from pathlib import Path
from typing import Any

import torch

REGIMES = {
    "none": "no privacy",
    "distributed": "user-level, distributed noise",
    "central": "user-level, central noise",
    "record": "record-level DP-SGD",
}


def summarise(history: list[dict[str, Any]]) -> dict[str, Any]:
    """last, best (chosen on the test set, so optimistic) and at_best_validation, each with its round."""
    measured = [r for r in history if "test_accuracy" in r]
    if not measured:
        return {"last": None, "best": None, "at_best_validation": None}
    best = max(measured, key=lambda r: r["test_accuracy"])
    chosen = [r for r in measured if r["validation_accuracy"] is not None]
    by_validation = max(chosen, key=lambda r: r["validation_accuracy"]) if chosen else None
    own = {
        name: [r[name] for r in measured if r.get(name) is not None] for name in ("local_accuracy", "personal_accuracy")
    }
    return {f"{name}_last": values[-1] if values else None for name, values in own.items()} | {
        "last": measured[-1]["test_accuracy"],
        "best": best["test_accuracy"],
        "best_round": best["round"],
        "at_best_validation": by_validation["test_accuracy"] if by_validation else None,
        "at_best_validation_round": by_validation["round"] if by_validation else None,
    }


def machine(device: torch.device) -> str:
    """The name of the GPU, or of the processor where the system tells it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())

"""The paper's CIFAR-10 run from end to end on a GPU, and what TF32 does to its accuracy.

    FEDCEO_DATA=... python benchmarks/gpu_cifar10.py [--out FILE.json]

LeNet-5, record-level DP-SGD at sigma = 2, N = 100 clients of 400 records, K = 10, E = 30, B = 64, momentum 0.5,
evaluation every 5 rounds. First UDP-FedAvg and FedCEO (300 rounds each, TF32) one after the other, alone on the
machine: their seconds are the ones to quote. Then UDP-FedAvg with other seeds, without TF32, and at learning rate 0.1,
all at once: only their accuracies count. About ten minutes on one H200.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

BASE: dict[str, Any] = {
    "data": {"name": "cifar10", "clients": 100, "validation": 0.2},
    "model": {"name": "lenet5"},
    "cohort": {"size": 10},
    "train": {
        "rounds": 300, "local_epochs": 30, "batch_size": 64, "learning_rate": 0.01, "momentum": 0.5, "tf32": True
    },
    "privacy": {"mechanism": "record", "noise_multiplier": 2.0, "delta": 1e-5},
    "method": {"name": "fedavg"},
    "evaluation": {"every": 5},
    "checkpoint": {"every": 1000},
}  # fmt: skip
FEDCEO = {"name": "fedceo", "strength": 0.6, "ratio": 1.04, "interval": 10}
DIVERGING = {"learning_rate": 0.1, "rounds": 120}
ALONE: dict[str, dict[str, Any]] = {
    "UDP-FedAvg, lr 0.01, TF32, seed 0": {"seed": 0},
    "FedCEO, lr 0.01, TF32, seed 0": {"seed": 0, "method": FEDCEO},
}
TOGETHER: dict[str, dict[str, Any]] = {
    **{f"UDP-FedAvg, lr 0.01, TF32, seed {seed}": {"seed": seed} for seed in (1, 2)},
    **{f"UDP-FedAvg, lr 0.01, float32, seed {s}": {"seed": s, "train": {"tf32": False}} for s in (0, 1, 2)},
    **{f"UDP-FedAvg, lr 0.1, 120 rounds, TF32, seed {seed}": {"seed": seed, "train": DIVERGING} for seed in (0, 1)},
}
CODE = "import json, sys, fedceo; fedceo.run(json.loads(sys.argv[1]), out=sys.argv[2])"


def table(changes: dict[str, Any]) -> dict[str, Any]:
    merged = {name: BASE[name] | changes.get(name, {}) if name != "method" else BASE[name] for name in BASE}
    return merged | {name: changes[name] for name in ("seed", "method") if name in changes}


def start(name: str, changes: dict[str, Any], folder: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", CODE, json.dumps(table(changes)), str(folder / name)])


def row(name: str, folder: Path, alone: bool) -> dict[str, Any]:
    result = json.loads((folder / name / "result.json").read_text())
    return {
        "run": name,
        "regime": result["regime"],
        "last": round(100 * result["accuracy"]["last"], 2),
        "best": round(100 * result["accuracy"]["best"], 2),
        "seconds": round(result["seconds"], 1) if alone else None,
    }


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "cifar10-h200.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, changes in ALONE.items():
            start(name, changes, folder).wait()
        for process in [start(name, changes, folder) for name, changes in TOGETHER.items()]:
            process.wait()
        rows = [row(name, folder, name in ALONE) for name in (*ALONE, *TOGETHER)]
    for each in rows:
        print(f"{each['run']:50} last {each['last']:6.2f}  best {each['best']:6.2f}  {each['seconds'] or ''}")
    about = {"machine": torch.cuda.get_device_name(), "torch": torch.__version__, "date": date.today().isoformat()}
    arguments.out.write_text(json.dumps(about | {"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()

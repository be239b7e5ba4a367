"""The paper's CIFAR-10 run from end to end on a GPU, and what TF32 does to its accuracy.

    FEDCEO_DATA=... python benchmarks/gpu_end_to_end.py [--rounds 300] [--methods FedCEO] [--compared 60] [--out FILE]

LeNet-5, record-level DP-SGD at sigma = 2, N = 100 clients of 400 records, K = 10, E = 30, B = 64, momentum 0.5,
evaluation every 5 rounds. First FedCEO and UDP-FedAvg with TF32 (--rounds each) one after the other, alone on the
machine: their seconds are the ones to quote. Then UDP-FedAvg with three seeds for --compared rounds, with TF32 and
without, three runs as one program: only their accuracies count. About three minutes on one H200.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import tomli_w

BASE: dict[str, Any] = {
    "data": {"name": "cifar10", "clients": 100, "validation": 0.2},
    "model": {"name": "lenet5"},
    "cohort": {"size": 10},
    "train": {"local_epochs": 30, "batch_size": 64, "learning_rate": 0.01, "momentum": 0.5},
    "privacy": {"mechanism": "record", "noise_multiplier": 2.0, "delta": 1e-5},
    "method": {"name": "fedavg"},
    "evaluation": {"every": 5},
    "checkpoint": {"every": 1000},
}
FEDCEO = {"name": "fedceo", "strength": 0.6, "ratio": 1.04, "interval": 10}
SEEDS = 3


def run(name: str, folder: Path, changes: dict[str, Any], *options: str) -> list[dict[str, Any]]:
    """The results of a sweep over one experiment, by seed."""
    table = BASE | changes | {"train": BASE["train"] | changes["train"]}
    file, out = folder / f"{name}.toml", folder / name
    file.write_text(tomli_w.dumps(table))
    subprocess.run([sys.executable, "-m", "fedceo", "sweep", file, "--out", out, *options], check=True)
    return [json.loads(path.read_text()) for path in sorted(out.rglob("result.json"))]


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300, help="rounds of the runs that are timed; 0: none")
    parser.add_argument("--methods", default="FedCEO,UDP-FedAvg", help="those that are timed")
    parser.add_argument("--compared", type=int, default=60, help="rounds of the runs with and without TF32; 0: none")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "end-to-end-h200.json")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        methods = {"FedCEO": FEDCEO, "UDP-FedAvg": BASE["method"]}
        for name, method in ((name, methods[name]) for name in options.methods.split(",") if options.rounds):
            train = {"rounds": options.rounds, "tf32": True}
            (result,) = run(f"{name}-alone", folder, {"method": method, "train": train}, "--seeds", "1")
            rows.append(row(f"{name}, TF32, seed 0, alone", result) | {"seconds": round(result["seconds"], 1)})
        for words, tf32 in (("TF32", True), ("float32", False)) if options.compared else ():
            train = {"rounds": options.compared, "tf32": tf32}
            results = run(words, folder, {"train": train}, "--seeds", str(SEEDS), "--stack", str(SEEDS))
            rows += [row(f"UDP-FedAvg, {words}, seed {seed}", result) for seed, result in enumerate(results)]
    for each in rows:
        seconds = f"{each['seconds']} s" if "seconds" in each else ""
        print(
            f"{each['run']:34}{each['rounds']:5} rounds  last {each['last']:6.2f}  best {each['best']:6.2f}  {seconds}"
        )
    with_, without = (
        [each["last"] for each in rows if f"{words}, seed" in each["run"]][-SEEDS:] for words in ("TF32", "float32")
    )
    gaps = [one - other for one, other in zip(with_, without, strict=True)]
    if gaps:
        spread = f"{statistics.mean(gaps):+.2f} +- {statistics.stdev(gaps):.2f}"
        print(f"TF32 less float32, last round: {spread} points over seeds")
    about = {"machine": torch.cuda.get_device_name(), "torch": torch.__version__, "date": date.today().isoformat()}
    options.out.write_text(json.dumps(about | {"rows": rows, "tf32_less_float32": gaps}, indent=2) + "\n")


def row(name: str, result: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": name,
        "regime": result["regime"],
        "rounds": result["rounds"],
        "last": round(100 * result["accuracy"]["last"], 2),
        "best": round(100 * result["accuracy"]["best"], 2),
    }


if __name__ == "__main__":
    main()

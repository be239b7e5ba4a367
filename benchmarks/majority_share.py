"""How often the most frequent label of Sentiment140's test records is right: what a model has to beat.

python benchmarks/majority_share.py
"""

import json
from pathlib import Path

from fedceo.data import build_federation
from fedceo.experiment.file import load_experiment

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "benchmarks" / "results" / "sent140-majority.json"
TABLES = ("paper/more/sent140-lstm", "paper/more/sent140-users")
SEEDS = (0, 1, 2)


def main() -> None:
    found = {}
    for table in TABLES:
        experiment = load_experiment(ROOT / "experiments" / f"{table}.toml", cell="fedavg")
        tests = [build_federation(experiment.data, seed).test_y for seed in SEEDS]
        found[table] = {
            "test_records": [len(labels) for labels in tests],
            "majority": [float(labels.bincount().max() / len(labels)) for labels in tests],
        }
    OUT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

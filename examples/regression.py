"""Regression from a table: how far diabetes has gone after a year, on clients that a column of the table names.

python examples/regression.py
"""

import csv
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes

import fedceo

patients = load_diabetes(scaled=False)
x, progression = patients.data, patients.target
practice = np.random.default_rng(0).integers(60, size=len(x))
least, most = np.array([[18, 1, 15, 50, 80, 30, 15, 2, 3, 50], [80, 2, 45, 140, 320, 250, 100, 10, 6.5, 130]])
ranges = 2 * (x - least) / (most - least) - 1  # by what these quantities can be, not by these patients' own means

with tempfile.TemporaryDirectory() as folder:
    table = Path(folder) / "patients.csv"
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*patients.feature_names, "practice", "progression"])
        for row, k, y in zip(ranges, practice, progression, strict=True):
            rows.writerow([*row, f"practice {k}", y / 100])
    run = fedceo.run(
        {
            "data": {
                "path": str(table),
                "target_columns": ["progression"],
                "client_column": "practice",
                "local_test": 0.2,
            },
            "task": {"name": "regression"},
            "model": {"name": "logistic"},  # flatten -> linear, which is linear regression here
            "cohort": {"size": 30},
            "train": {"rounds": 40, "local_epochs": 2, "batch_size": 8, "learning_rate": 0.03},
            "privacy": {"mechanism": "central", "target_epsilon": 8.0, "clip": 0.3},
            "method": {"name": "fedavg"},
            "evaluation": {"every": 10},
        },
    )

for record in run.history:
    if "test_rmse" in record:
        print(f"round {record['round']:>3}  RMSE {100 * record['test_rmse']:.1f}  MAE {100 * record['test_mae']:.1f}")
last = run.history[-1]
print(f"RMSE of a practice: {100 * last['local_rmse']:.1f}, of the worst tenth: {100 * last['local_rmse_worst']:.1f}")
print(f"RMSE of the mean, without any model: {progression.std():.1f}")
row = run.result["privacy"][0]
print(f"{row['observer']}: epsilon {row['epsilon']:.2f} at delta {row['delta']:.1e} of one {row['unit']}:")
print(row["assumption"])

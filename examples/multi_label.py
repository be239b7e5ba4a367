"""Several labels a record: what is true of a handwritten digit, each answer yes or no.

python examples/multi_label.py
"""

import numpy as np
from sklearn.datasets import load_digits

import fedceo

digits = load_digits()
true_of = {"even": (0, 2, 4, 6, 8), "prime": (2, 3, 5, 7), "has a loop": (0, 6, 8, 9), "above four": (5, 6, 7, 8, 9)}
labels = np.stack([np.isin(digits.target, numbers) for numbers in true_of.values()], axis=1)

run = fedceo.run(
    {
        "data": {"name": "digits", "clients": 50},
        "task": {"name": "multi-label"},
        "cohort": {"size": 25},
        "train": {"rounds": 30, "local_epochs": 3, "batch_size": 8, "learning_rate": 0.1},
        "privacy": {"mechanism": "central", "target_epsilon": 8.0},
        "method": {"name": "fedavg"},
        "evaluation": {"every": 10},
    },
    data=fedceo.from_arrays(digits.images / 16, labels.astype(int), name="what is true of a digit"),
)

for record in run.history:
    if "test_f1" in record:
        print(f"round {record['round']:>3}  F1 {record['test_f1']:.3f}  AUC {record['test_auc']:.3f}")
print(f"trained by the {run.result['engine']} engine in {run.result['seconds']:.0f} s")
row = run.result["privacy"][0]
print(f"{row['observer']}: epsilon {row['epsilon']:.2f} at delta {row['delta']:.1e} of one {row['unit']}:")
print(row["assumption"])

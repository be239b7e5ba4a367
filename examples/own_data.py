"""Data of your own: arrays and whose record each one is; nothing needs registering.

python examples/own_data.py
"""

import numpy as np

import fedceo

rng = np.random.default_rng(0)
people, per_person = 40, 30
whose = np.repeat(np.arange(people), per_person)
label = rng.integers(4, size=whose.size)
centres, habits = rng.normal(size=(4, 12)), 0.3 * rng.normal(size=(people, 12))
x = (centres[label] + habits[whose] + 0.7 * rng.normal(size=(whose.size, 12))).astype(np.float32)

run = fedceo.run(
    {
        "data": {"name": "people", "partition": "natural"},
        "cohort": {"size": 40},
        "train": {"rounds": 15, "local_epochs": 3, "batch_size": 10},
        "privacy": {"mechanism": "distributed", "target_epsilon": 8.0},
        "method": {"name": "fedceo", "restart": "mean", "interval": 5, "strength": 0.1},
    },
    data=fedceo.from_arrays(x, label, client=whose),
)
for record in run.history:
    if "test_accuracy" in record:
        print(f"round {record['round']:>3}  test accuracy {record['test_accuracy']:.3f}")
print(f"regime: {run.result['regime']}, noise multiplier {run.result['noise_multiplier']:.2f}")

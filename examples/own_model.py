"""A model of your own: any module that returns logits goes in as it is.

python examples/own_model.py
"""

from torch import nn

import fedceo

model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))

run = fedceo.run(
    {
        "data": {"name": "digits", "clients": 50},
        "cohort": {"size": 25},
        "train": {"rounds": 10, "local_epochs": 5, "batch_size": 16},
        "privacy": {"mechanism": "central", "target_epsilon": 8.0},
        "method": {"name": "fedavg"},
    },
    model=model,
)
for row in run.result["privacy"]:
    print(f"{row['observer']:<12} epsilon {row['epsilon']}  ({row['assumption']})")
print(f"test accuracy {run.result['accuracy']['last']:.3f} in the regime: {run.result['regime']}")
print("an ordinary state dict:", {name: tuple(w.shape) for name, w in run.model.state_dict().items()})

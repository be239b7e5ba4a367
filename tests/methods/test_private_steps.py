"""The local steps under record privacy that a method reports to the accountant."""

from typing import Any

import pytest

from fedceo.experiment.file import parse_experiment
from fedceo.simulation.spending import privacy_plan

BATCHES, EPOCHS = 4, 3


@pytest.mark.parametrize(
    "method, steps, rate",
    [
        ({"name": "fedavg"}, 12, 1 / 4),
        ({"name": "fedprox"}, 12, 1 / 4),
        ({"name": "dp-fedavg"}, 12, 1 / 4),
        ({"name": "fedceo"}, 12, 1 / 4),
        ({"name": "dp-fedsam"}, 12, 1 / 4),
        ({"name": "dp-fedsgd"}, 1, 1 / 4),
        ({"name": "dp-fedsgd", "batch": "full"}, 1, 1.0),
        ({"name": "ppsgd", "form": "gradient"}, 1, 1 / 4),
        ({"name": "ppsgd", "personal_epochs": 2}, 4 * (2 + 3), 1 / 4),
        ({"name": "centaur", "head_epochs": 5}, 4 * (5 + 3), 1 / 4),
        ({"name": "jain-anil", "head_epochs": 5}, 4 * 5 + 1, 1 / 4),
        ({"name": "centaur", "head_epochs": 5, "personal": "none"}, 4 * 3, 1 / 4),
    ],
    ids=str,
)
def test_every_private_step_is_counted(method: dict[str, Any], steps: int, rate: float) -> None:
    """Personal phases too: what is sent depends on them."""
    experiment = parse_experiment(
        {
            "data": {"name": "digits", "clients": 10},
            "train": {"local_epochs": EPOCHS, "batch_size": 8},
            "privacy": {"mechanism": "record", "noise_multiplier": 1.0},
            "method": method,
        }
    )
    (kind,) = privacy_plan(experiment, [8 * BATCHES] * 10, 1.0).record_steps
    assert (kind.steps, kind.rate) == (steps, rate)

"""A small experiment whose runs keep the models of some rounds, for tests of figures, pages and the terminal."""

from typing import Any

TABLE: dict[str, Any] = {
    "data": {"name": "digits", "clients": 30},
    "cohort": {"size": 6},
    "train": {"rounds": 8, "local_epochs": 1, "batch_size": 16},
    "privacy": {"mechanism": "distributed", "noise_multiplier": 0.5},
    "method": {"name": "fedceo", "interval": 4, "strength": 5.0},
    "evaluation": {"every": 2},
    "record": {"every": 4},
}

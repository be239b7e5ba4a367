"""Weights & Biases. Where its data go is its own setting: WANDB_MODE=offline keeps them on this machine."""

import os
import uuid
from importlib import import_module
from pathlib import Path
from typing import Any

from fedceo.errors import UsageError
from fedceo.simulation.callbacks import CALLBACKS, FIELD, Callback, Settings, final_numbers_of, numbers_of


@CALLBACKS.register("wandb", "measurements, settings and epsilon for Weights & Biases (extra wandb)")
class WeightsAndBiases(Callback):
    """One run of W&B for a run; one that is resumed from its folder goes on under the same identifier."""

    def __init__(self) -> None:
        try:
            self._wandb = import_module("wandb")
        except ImportError:
            raise UsageError(f"{FIELD}: wandb needs the extra fedceo[wandb]") from None

    def on_start(self, settings: Settings, folder: Path | None) -> None:
        place: dict[str, Any] = {}
        if folder is not None:
            identifier = uuid.uuid5(uuid.NAMESPACE_URL, folder.resolve().as_uri()).hex
            place = {"name": folder.name, "dir": str(folder), "id": identifier, "resume": "allow"}
        project = os.environ.get("WANDB_PROJECT", "fedceo")
        self._run = self._wandb.init(project=project, config=settings, **place)

    def on_measurement(self, metrics: dict[str, Any]) -> None:
        self._run.log(numbers_of(metrics), step=metrics["round"])

    def on_end(self, result: dict[str, Any]) -> None:
        self._run.summary.update(final_numbers_of(result))
        self._run.finish()

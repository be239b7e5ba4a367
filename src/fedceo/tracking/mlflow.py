"""MLflow. Where its data go is its own setting: MLFLOW_TRACKING_URI, on this machine if it is left out."""

from importlib import import_module
from pathlib import Path
from typing import Any

from fedceo.errors import UsageError
from fedceo.simulation.callbacks import CALLBACKS, FIELD, Callback, Settings, final_numbers_of, numbers_of


@CALLBACKS.register("mlflow", "measurements, settings and epsilon for MLflow (extra mlflow)")
class MLflow(Callback):
    """One run of MLflow for a run; one that is resumed begins another, of the same name."""

    def __init__(self) -> None:
        try:
            self._mlflow = import_module("mlflow")
        except ImportError:
            raise UsageError(f"{FIELD}: mlflow needs the extra fedceo[mlflow]") from None

    def on_start(self, settings: Settings, folder: Path | None) -> None:
        self._mlflow.start_run(run_name=None if folder is None else folder.name)
        self._mlflow.log_params(dict(_flat(settings)))

    def on_measurement(self, metrics: dict[str, Any]) -> None:
        self._mlflow.log_metrics(numbers_of(metrics), step=metrics["round"])

    def on_end(self, result: dict[str, Any]) -> None:
        self._mlflow.log_metrics(final_numbers_of(result), step=result["rounds"])
        self._mlflow.end_run()


def _flat(settings: Settings) -> list[tuple[str, Any]]:
    """The settings as "section.field" and value, since parameters of MLflow have no sections."""
    flat: list[tuple[str, Any]] = []
    for name, value in settings.items():
        if isinstance(value, dict):
            flat += [(f"{name}.{field}", inner) for field, inner in _flat(value)]
        else:
            flat.append((name, value))
    return flat

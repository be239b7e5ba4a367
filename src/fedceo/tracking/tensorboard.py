"""TensorBoard: curves and pictures of recorded rounds as events in the run's folder."""

from importlib import import_module
from pathlib import Path
from typing import Any

from fedceo.errors import UsageError
from fedceo.simulation.callbacks import CALLBACKS, FIELD, Callback, Settings, numbers_of


@CALLBACKS.register("tensorboard", "events in the run's folder, for TensorBoard (extra tensorboard)")
class TensorBoard(Callback):
    """Events of every round's numbers; figures of rounds that were recorded."""

    def __init__(self) -> None:
        try:
            self._writer_of = import_module("torch.utils.tensorboard").SummaryWriter
        except ImportError:
            raise UsageError(f"{FIELD}: tensorboard needs the extra fedceo[tensorboard]") from None

    def on_start(self, settings: Settings, folder: Path | None) -> None:
        if folder is None:
            raise UsageError(f"{FIELD}: tensorboard writes into the run's folder, expected out=")
        self._folder, self._writer = folder, self._writer_of(str(folder / "events"))

    def on_measurement(self, metrics: dict[str, Any]) -> None:
        for name, value in numbers_of(metrics).items():
            self._writer.add_scalar(name, value, metrics["round"])
        recorded = self._folder / "records" / f"round-{metrics['round']:05}.safetensors"
        if recorded.exists():
            from fedceo.report.figures import of_recording, read_recording  # slow to import, and not always needed

            for name, drawing in of_recording(read_recording(recorded)).items():
                self._writer.add_figure(name, drawing.figure, metrics["round"])
        self._writer.flush()

    def on_end(self, result: dict[str, Any]) -> None:
        self._writer.close()

"""Which trainer runs: a fixed rule on model, device and regime, never a timing inside the run."""

from torch import nn

from fedceo.errors import UsageError
from fedceo.training.batched import BatchedTrainer
from fedceo.training.loop import LoopTrainer
from fedceo.training.work import Place, Trainer

MOST_GRADIENT_BYTES = 2**30
"""Per-record gradients of a whole cohort may take this much; above it the loop holds one client's at a time."""

CANNOT_BATCH = (nn.Dropout, nn.RNNBase)
"""Modules that draw from torch's global stream or cannot be mapped over clients."""


def choose_engine(place: Place, engine: str, cohort: int, batch_size: int, record_level: bool) -> str:
    """ "loop" or "batched".

    auto takes the batch on a GPU, and on a CPU for models without convolutions: there one batched product of all
    clients' linear layers beats many small ones, while batched convolutions lose to the plain ones.
    """
    cannot = next((type(m).__name__ for m in place.model.modules() if isinstance(m, CANNOT_BATCH)), None)
    if engine == "batched" and cannot:
        raise UsageError(f"train.engine: the model has {cannot}, which cannot be batched; use loop or auto")
    if engine != "auto":
        return engine
    convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in place.model.modules())
    size = sum(p.numel() * p.element_size() for p in place.model.parameters())
    too_large = record_level and cohort * batch_size * size > MOST_GRADIENT_BYTES
    if cannot or too_large or (convolves and place.device.type == "cpu"):
        return "loop"
    return "batched"


def make_trainer(place: Place, engine: str) -> Trainer:
    return BatchedTrainer(place) if engine == "batched" else LoopTrainer(place)

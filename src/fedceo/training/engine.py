"""Which trainer runs: a fixed rule on model, device and regime, never a timing inside the run."""

from torch import nn
from torch.func import functional_call, vmap

from fedceo.errors import UsageError
from fedceo.training.batched import BatchedTrainer
from fedceo.training.loop import LoopTrainer
from fedceo.training.work import Place, Trainer

MOST_GRADIENT_BYTES = 2**30
"""Per-record gradients of a whole cohort may take this much; above it the loop holds one client's at a time."""


def choose_engine(place: Place, engine: str, cohort: int, batch_size: int, record_level: bool) -> str:
    """ "loop" or "batched".

    auto takes the batch on a GPU, and on a CPU for models without convolutions: there one batched product of all
    clients' linear layers beats many small ones, while batched convolutions lose to the plain ones.
    """
    if engine == "loop":
        return engine
    cannot = why_not_batched(place)
    if engine == "batched" and cannot:
        raise UsageError(f"train.engine: the model cannot be batched ({cannot}); use loop or auto")
    if engine == "batched":
        return engine
    convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in place.model.modules())
    size = sum(p.numel() * p.element_size() for p in place.model.parameters())
    too_large = record_level and cohort * batch_size * size > MOST_GRADIENT_BYTES
    if cannot or too_large or (convolves and place.device.type == "cpu"):
        return "loop"
    return "batched"


def why_not_batched(place: Place) -> str | None:
    """What torch says when two copies of the model are run at once, or nothing if it can."""
    weights = {name: p.detach().expand(2, *p.shape) for name, p in place.model.named_parameters()}
    x = next(place.model.parameters()).new_zeros(2, 2, *place.federation.shape)
    place.model.train()
    try:
        vmap(lambda w, x: functional_call(place.model, w, (x,)))(weights, x)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return str(error).split(".")[0].splitlines()[0]
    return None


def make_trainer(place: Place, engine: str) -> Trainer:
    return BatchedTrainer(place) if engine == "batched" else LoopTrainer(place)

"""Which trainer runs: a fixed rule on model, device and regime, never a timing inside the run."""

from torch import nn
from torch.func import functional_call, vmap

from fedceo.errors import UsageError
from fedceo.training.batched import BatchedTrainer
from fedceo.training.chain import NotAChainError, read_chain
from fedceo.training.loop import LoopTrainer
from fedceo.training.work import Place, Trainer


def choose_engine(place: Place, engine: str) -> str:
    """ "loop" or "batched".

    auto takes the batch wherever the model can be batched, but for one case: on a CPU the loop beats torch.func's
    batched convolutions, which a model needs that has convolutions and is no chain of known layers.
    """
    if engine == "loop":
        return engine
    cannot = why_not_batched(place)
    if engine == "batched":
        if cannot:
            raise UsageError(f"train.engine: the model cannot be batched ({cannot}); use loop or auto")
        return engine
    convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in place.model.modules())
    slow = place.device.type == "cpu" and convolves and why_no_chain(place) is not None
    return "loop" if cannot or slow else "batched"


def why_not_batched(place: Place) -> str | None:
    """What torch says when two copies of the model are run at once, or nothing if it can."""
    if why_no_chain(place) is None:
        return None
    weights = {name: p.detach().expand(2, *p.shape) for name, p in place.model.named_parameters()}
    x = next(place.model.parameters()).new_zeros(2, 2, *place.federation.shape)
    place.model.train()
    try:
        vmap(lambda w, x: functional_call(place.model, w, (x,)))(weights, x)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return str(error).split(".")[0].splitlines()[0]
    return None


def why_no_chain(place: Place) -> str | None:
    """What keeps the model from the blocks of chain.py, or nothing if it is such a chain."""
    try:
        read_chain(place.model, place.federation.shape)
    except NotAChainError as reason:
        return str(reason)
    return None


def make_trainer(place: Place, engine: str, cores: int | None = None) -> Trainer:
    """cores: of the CPU that a loop may use, instead of all; a batch uses as many as torch does."""
    return BatchedTrainer(place) if engine == "batched" else LoopTrainer(place, cores)

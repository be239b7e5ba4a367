"""Architectures, one small file each: plain modules that return logits.

A model with dropout takes its mask as a second argument, so that a run's randomness is data (see training.schedule):
it says the shape of one record's mask in `mask_shape` and the probability of a one in `keep`. Without a mask nothing
is dropped.
"""

import torch
from torch import Tensor, nn

from fedceo.errors import UsageError
from fedceo.experiment.plugins import is_own
from fedceo.models.named import own_maker
from fedceo.models.registry import MODELS

__all__ = ["MODELS", "build_model", "check_model", "parameters_of"]


def build_model(name: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """A registered architecture, or one's own as "module:callable", for records of `shape`, from `seed` alone."""
    if not is_own(name) and name not in MODELS:
        raise UsageError(f"model.name: {MODELS.unknown(name)}; your own are module:callable")
    make = own_maker(name) if is_own(name) else MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(shape, classes)


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """The trainable parameters by name, detached."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def check_model(model: nn.Module, shape: tuple[int, ...], classes: int, dtype: torch.dtype | None = None) -> None:
    """Refuse a model that does not take the data, or whose state is more than its parameters.

    dtype: of the inputs; left out, that of the parameters.
    """
    first_names: dict[nn.Module, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        first = first_names.setdefault(module, name)
        if first != name and next(module.parameters(), None) is not None:  # torch.func would lose its weights
            raise UsageError(f"model: {first} and {name} are one module, expected one name; forward may use it twice")
    for name, module in model.named_modules():
        if getattr(module, "running_mean", None) is not None:
            raise UsageError(
                f"model: {name or type(module).__name__} keeps running statistics of records, which no mechanism "
                "accounts for; use GroupNorm or LayerNorm"
            )
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with torch.no_grad():
            logits = model(next(model.parameters()).new_zeros(2, *shape, dtype=dtype))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"model: does not take records of shape {shape}: {first}") from None
    if not isinstance(logits, Tensor):
        raise UsageError(f"model: gives a {type(logits).__name__}, expected a tensor of {classes} logits a record")
    for name, buffer in model.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise UsageError(f"model: its forward pass changes {name}, which no mechanism accounts for")
    if logits.shape != (2, classes):
        raise UsageError(f"model: gives shape {tuple(logits.shape[1:])} a record, expected {classes} logits")

"""Architectures, one small file each: plain modules that return logits.

A model with dropout takes its mask as a second argument, so that a run's randomness is data (see training.schedule).
Its attribute `mask_shape` is the shape of one record's mask, `keep` the probability of a one. Without a mask nothing is
dropped. Nothing trains, noises or smooths a buffer; a frozen layer is therefore a buffer. A model of which only a head
is trained, on a fixed transform of records, is an `OnFeatures`, so that the transform is computed once for a record.
"""

from collections.abc import Mapping
from inspect import signature
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from fedceo.errors import UsageError
from fedceo.experiment.plugins import is_own
from fedceo.models.features import OnFeatures
from fedceo.models.plugins import check_trainable, find_maker
from fedceo.models.registry import MODELS

__all__ = [
    "MODELS",
    "OnFeatures",
    "build_model",
    "can_be_built",
    "check_model",
    "check_trainable",
    "fixed_parts",
    "parameters_of",
]


NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


def build_model(
    name: str, shape: tuple[int, ...], classes: int, seed: int, settings: Mapping[str, Any] = NO_SETTINGS
) -> nn.Module:
    """A model of a registered architecture, or of the user's "module:callable", with weights drawn from `seed`.

    Args:
        settings: the other fields of [model] that are given, which go to the architecture.
    """
    if not can_be_built(name):
        raise UsageError(f"model.name: {MODELS.unknown(name)}; your own are module:callable")
    make = find_maker(name) if is_own(name) else MODELS[name]
    for field in settings.keys() - signature(make).parameters.keys():
        raise UsageError(f"model.{field}: {settings[field]!r}, but model {name} has no such setting")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(shape, classes, **settings)


def can_be_built(name: str) -> bool:
    """Whether the name says how to make the model; that of a module given in Python does not."""
    return is_own(name) or name in MODELS


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """The trainable parameters of a model by name, detached."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def fixed_parts(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that belong to a saved model, such as a transform's filters; they are the same after any training."""
    kept = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in kept}


def check_model(
    model: nn.Module,
    shape: tuple[int, ...],
    classes: int,
    dtype: torch.dtype | None = None,
    places: tuple[int, ...] = (),
) -> None:
    """Refuse a model that does not take the data, or whose state is more than its parameters.

    Args:
        classes: the number of outputs; places: the axes before them, where there are outputs for each token.
        dtype: the inputs' dtype; left out, it is that of the parameters.
    """
    expected = f"{' x '.join(map(str, (*places, classes)))} logits"
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
        raise UsageError(f"model: gives a {type(logits).__name__}, expected a tensor of {expected} a record")
    for name, buffer in model.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise UsageError(f"model: its forward pass changes {name}, which no mechanism accounts for")
    if logits.shape != (2, *places, classes):
        raise UsageError(f"model: gives shape {tuple(logits.shape[1:])} a record, expected {expected}")

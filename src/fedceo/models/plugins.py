"""Architectures of the user's own, which an experiment file names as "module:callable"."""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedceo.errors import UsageError
from fedceo.experiment.plugins import call, find, is_own


def find_maker(name: str) -> Callable[[tuple[int, ...], int], nn.Module]:
    """The user's function from (shape of a record, number of classes) to a model, to be called when the seed is set.

    The user's module is imported here, before that: random numbers drawn on import must not decide the first weights.
    """
    make = find("model.name", name)
    if isinstance(make, nn.Module) or not callable(make):
        kind = type(make).__name__
        raise UsageError(f"model.name: {name!r} is a {kind}, expected a callable that takes (shape, classes)")
    return partial(_made, name, make)


def _made(name: str, make: Callable[..., Any], shape: tuple[int, ...], classes: int) -> nn.Module:
    model = call("model.name", name, make, shape, classes)
    check_trainable(model, f"model.name: {name!r} gives ")
    return model


def check_trainable(model: Any, where: str) -> None:
    """Refuse what is no module, or has nothing to train; where: the beginning of the message."""
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    if not parameters:
        raise UsageError(f"{where}{type(model).__name__}, expected a torch module with parameters")
    if not any(p.requires_grad for p in parameters):
        raise UsageError(
            f"{where}{type(model).__name__}, whose {len(parameters)} parameters are all frozen (requires_grad is "
            "False), expected some that train"
        )


@cache
def fingerprint(name: str, shape: tuple[int, ...], classes: int) -> tuple[float, ...]:
    """The logits of the model from seed 0 on two made-up records, by which a run knows its architecture again."""
    make = find_maker(name)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = make(shape, classes).float().eval()  # a run trains it in a precision of its own, whatever it comes in
        x = torch.linspace(-1, 1, 2 * math.prod(shape)).view(2, *shape)
        try:
            logits = model(x)
        except (RuntimeError, TypeError, IndexError):  # a model that takes tokens
            logits = model(x.abs().mul(3).long())
    return tuple(float(value) for value in logits.flatten())


def check_unchanged(noted: Sequence[float] | None, name: str, shape: Sequence[int], classes: int, where: Path) -> None:
    """Refuse a run that was made by other code under the same name; noted: the `fingerprint` of that time."""
    if noted is None or not is_own(name):
        return
    now = fingerprint(name, tuple(shape), classes)
    if len(now) != len(noted) or not torch.allclose(torch.tensor(now), torch.tensor(noted), rtol=1e-3, atol=1e-4):
        raise UsageError(f"{where}: was made with another {name}, whose code has changed since")

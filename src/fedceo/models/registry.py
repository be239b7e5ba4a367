"""The registry of architectures; each file of this room registers its own.

    @MODELS.register("logistic", "logistic regression")
    class Logistic(nn.Module):
        def __init__(self, shape: tuple[int, ...], classes: int) -> None: ...

Another package registers its architectures in a module that an entry point of the group `fedceo.models` names.
"""

from collections.abc import Callable

from torch import nn

from fedceo.experiment.registry import Registry

MODELS: Registry[Callable[..., nn.Module]] = Registry("model", "fedceo.models")
"""Architectures by name; each takes the shape of one record, the number of classes, and fields of [model] by name."""

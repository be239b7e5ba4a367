"""The kinds of targets that data have, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from fedceo.data import Federation


def kind_of(federation: Federation) -> str:
    """What a federation's targets are."""
    y = federation.y
    if y.is_floating_point():
        return f"{y.shape[1]} number{'s' if y.shape[1] > 1 else ''} a record"
    return f"one of {federation.classes} labels a record" if y.ndim == 1 else "tokens"


def are_flags(y: Tensor) -> bool:
    """Whether the targets are numbers that are 0 or 1 all."""
    return y.is_floating_point() and bool(((y == 0) | (y == 1)).all())

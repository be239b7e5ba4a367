"""Checks of the input of every function in this room, with one line for each way to fail."""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float64]
"""One number per slice, on the host, where decisions are made."""


def check_tensor(w: Tensor, name: str) -> None:
    """Refuse anything but a finite, real, three-axis floating-point tensor without empty axes."""
    check_form(w, name)
    check_finite(torch.stack(w.detach().aminmax()).tolist(), name)


def check_form(w: Tensor, name: str) -> None:
    """Refuse a tensor by its type and shape: the part of check_tensor that reads no values."""
    if not isinstance(w, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(w).__name__}")
    if w.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} must be float32 or float64, got {str(w.dtype).removeprefix('torch.')}")
    if w.ndim != 3:
        raise ValueError(f"{name} must have three axes (d, h, clients), got shape {tuple(w.shape)}")
    if w.numel() == 0:
        axis = ("first", "second", "client")[list(w.shape).index(0)]
        raise ValueError(f"{name} must not have an empty axis, got shape {tuple(w.shape)}: the {axis} axis is empty")


def check_finite(extremes: list[float], name: str) -> None:
    """Refuse a tensor whose smallest and largest value are not finite: the part of check_tensor that reads values."""
    if not all(math.isfinite(extreme) for extreme in extremes):
        raise ValueError(f"{name} must be finite, got NaN or Inf")


def check_pair(a: Tensor, b: Tensor) -> None:
    """Refuse two tensors whose t-product is not defined."""
    check_tensor(a, "a")
    check_tensor(b, "b")
    if a.dtype != b.dtype:
        raise TypeError(f"a and b must have the same dtype, got {a.dtype} and {b.dtype}")
    if a.device != b.device:
        raise ValueError(f"a and b must be on the same device, got {a.device} and {b.device}")
    if a.shape[1] != b.shape[0] or a.shape[2] != b.shape[2]:
        raise ValueError(
            f"shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit: a t-product needs (l, m, K) and (m, n, K)"
        )


def frequency_thresholds(threshold: float | Tensor, clients: int) -> Floats:
    """One non-negative threshold for each of the floor(K/2)+1 frequencies of a real tensor."""
    tau = torch.as_tensor(threshold, dtype=None if isinstance(threshold, Tensor) else torch.float64)
    if tau.is_complex() or tau.dtype == torch.bool:
        raise TypeError(f"threshold must be real, got {str(tau.dtype).removeprefix('torch.')}")
    tau = tau.detach().to("cpu", torch.float64)
    if tau.ndim > 1 or (tau.ndim == 1 and len(tau) != clients):
        raise ValueError(
            f"threshold must be a number or one per frequency, {clients} in all, got shape {tuple(tau.shape)}"
        )
    if not bool((tau >= 0).all()):  # a NaN fails this too
        raise ValueError(f"threshold must not be negative or NaN, got {float(tau.min()):g}")
    half = clients // 2 + 1
    if tau.ndim == 0:
        return np.full(half, float(tau))
    if not torch.equal(tau[1:], tau[1:].flip(0)):
        raise ValueError(
            "threshold must be the same for frequencies i and K - i, which are conjugates for real tensors"
        )
    return tau[:half].numpy()

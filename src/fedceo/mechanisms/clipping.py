"""Clipping of updates, updates that are not finite, and the count that adaptive clipping follows.

Norms are taken in float64. An update with a NaN or Inf anywhere becomes zero as a whole, still noised.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedceo.errors import UsageError
from fedceo.lazy import torch
from fedceo.tensors.weights import Weights, flat

CACHED = 2**17
"""Numbers in float64 that a core's cache holds."""


def clip_updates(updates: Weights, clip: float) -> dict[str, torch.Tensor]:
    """Each update scaled to L2 norm at most C over all tensors together; the norm is taken in float64."""
    factors = (clip / norms_of(updates).clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1.0)
    return {name: u * factors.to(u.dtype).view(-1, *(1,) * (u.ndim - 1)) for name, u in updates.items()}


def clip_each_tensor(updates: Weights, clip: float) -> dict[str, torch.Tensor]:
    """Each of m tensors of an update scaled to L2 norm at most C / sqrt(m)."""
    bound = clip / len(updates) ** 0.5
    return {name: clip_updates({name: u}, bound)[name] for name, u in updates.items()}


def norms_of(updates: Weights) -> torch.Tensor:
    """(K,) L2 norms over all tensors together, in float64."""
    return torch.stack([torch.cat([*map(_squares, _parts(flat(u)))]) for u in updates.values()]).sum(0).sqrt()


def _squares(rows: torch.Tensor) -> torch.Tensor:
    return rows.double().square().sum(1)


def _parts(rows: torch.Tensor) -> Sequence[torch.Tensor]:
    """The rows, on a CPU so few at a time that what is made of them stays in its cache."""
    return (rows,) if rows.is_cuda else rows.split(max(1, CACHED // max(1, rows.shape[1])))


def zero_nonfinite(updates: Weights) -> tuple[dict[str, torch.Tensor], int]:
    """The updates, with zero in the place of each that has a NaN or Inf anywhere, and how many these were."""
    return replace_nonfinite(updates, {})


def replace_nonfinite(stack: Weights, others: Weights) -> tuple[dict[str, torch.Tensor], int]:
    """The models, with others or zero in the place of each that has a NaN or Inf, and how many these were."""
    sums = torch.stack([flat(u).sum(1) for u in stack.values()])
    if bool(torch.isfinite(sums).all()):  # a sum is finite only if everything in it is
        return dict(stack), 0
    finite = finite_rows(stack)
    keep = {name: finite.view(-1, *(1,) * (u.ndim - 1)) for name, u in stack.items()}
    kept = {name: torch.where(keep[name], u, others.get(name, 0.0)) for name, u in stack.items()}
    return kept, int((~finite).sum())


def finite_rows(stack: Weights) -> torch.Tensor:
    """(K,) which models have neither NaN nor Inf anywhere."""
    return torch.stack([torch.isfinite(flat(u)).all(1) for u in stack.values()]).all(0)


def votes(within: torch.Tensor, capped: Sequence[int]) -> float:
    """The sum of the clients' indicators, 1/2 for an update within the clip and -1/2 for any other.

    Args:
        within: (K,) which updates were within the clip.
        capped: positions of clients at their cap, who have no say.
    """
    indicators = within.double() - 0.5
    if capped:
        indicators[list(capped)] = 0.0
    return float(indicators.sum())


def noise_beside_count(noise_multiplier: float, count_noise: float) -> float:
    """The noise z of updates with which updates and noised indicators together have that of the plan (D10).

    1/z_plan^2 = 1/z^2 + 1/(2 sigma_b)^2 with sigma_b, the noise of the sum of indicators.
    """
    if noise_multiplier == 0:
        return 0.0
    left = noise_multiplier**-2 - (2 * count_noise) ** -2
    if left <= 0:
        raise UsageError(
            f"privacy.count_noise: {count_noise:g}, expected more than half the noise multiplier, "
            f"{noise_multiplier:g}, or the counts alone spend everything"
        )
    return float(left**-0.5)

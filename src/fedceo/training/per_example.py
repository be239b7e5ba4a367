"""Record-level clipping and Gaussian noise, as in DP-SGD; the sums of clipped gradients are those of Opacus."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedceo.tensors.weights import Weights, flat
from fedceo.training.draws import draw_key
from fedceo.training.system_draws import SystemGenerator


def clipped_sum(gradients: Weights, present: Tensor, clip: float | Tensor) -> dict[str, Tensor]:
    """The sum over records of gradients scaled to L2 norm at most `clip` over all parameters together.

    A gradient that is not finite counts as zero: it must not take the noise of its batch with it.

    Args:
        gradients: name -> (B, ...), the gradient of each record.
        present: (B,) 1 for a record, 0 for filling.
    """
    factors = clip_factors([flat(g).square().sum(1) for g in gradients.values()], present, clip)
    finite = {name: torch.nan_to_num(g, nan=0.0, posinf=0.0, neginf=0.0) for name, g in gradients.items()}
    return {name: torch.einsum("b,b...->...", factors, g) for name, g in finite.items()}


def clip_factors(squares: Sequence[Tensor], present: Tensor, clip: float | Tensor) -> Tensor:
    """The factors that scale gradients to L2 norm at most `clip`: 0 for filling and for gradients that are not finite.

    Args:
        squares: (..., B) squared norms of the gradients' parts, which are summed.
        present: (..., B) 1 for a record, 0 for filling.
        clip: one for all, or a tensor that broadcasts to (..., B).
    """
    norms = torch.stack(list(squares)).sum(0).sqrt()
    return torch.where(torch.isfinite(norms), ((norms + 1e-6).reciprocal() * clip).clamp_max(1.0) * present, 0.0)


def draw_noise(like: Weights, std: float, generator: np.random.Generator) -> dict[str, Tensor]:
    """Independent Gaussian noise for every entry of one model, drawn as one flat vector."""
    total = sum(t.numel() for t in like.values())
    first = next(iter(like.values()))
    drawn = standard_normal(total, generator, first.device, first.dtype).mul_(std)
    parts = torch.split(drawn, [t.numel() for t in like.values()])
    return {name: part.view(t.shape) for (name, t), part in zip(like.items(), parts, strict=True)}


def standard_normal(total: int, generator: np.random.Generator, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(total,) standard normals: the generator's own on a CPU, elsewhere from a Philox stream whose key it draws.

    Those of the operating system are drawn on the host for every device: a key of 63 bits would undo what they are for.
    """
    if device.type == "cpu" or isinstance(generator, SystemGenerator):
        kind = np.float64 if dtype == torch.float64 else np.float32
        return torch.from_numpy(generator.standard_normal(total, dtype=kind)).to(device)
    philox = torch.Generator(device)
    philox.manual_seed(draw_key(generator))
    return torch.randn(total, generator=philox, device=device, dtype=dtype)

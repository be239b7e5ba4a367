"""Record-level clipping and noise inside a local step: DP-SGD as Opacus does it."""

from math import prod

import numpy as np
import torch
from torch import Tensor

from fedceo.training.work import Weights


def clipped_sum(gradients: Weights, present: Tensor, clip: float) -> dict[str, Tensor]:
    """Sum over records of gradients scaled to L2 norm at most `clip`, over all parameters together.

    A gradient that is not finite counts as zero: it must not take the noise of its batch with it.

    Args:
        gradients: name -> (B, ...), one gradient a record.
        present: (B,) 1 for a record, 0 for filling.
    """
    norms = torch.stack([flat(g).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
    factors = torch.where(torch.isfinite(norms), (clip / (norms + 1e-6)).clamp_max(1.0) * present, 0.0)
    finite = {name: torch.nan_to_num(g, nan=0.0, posinf=0.0, neginf=0.0) for name, g in gradients.items()}
    return {name: torch.einsum("b,b...->...", factors, g) for name, g in finite.items()}


def flat(stack: Tensor) -> Tensor:
    """(K, ...) -> (K, entries), scalars and empty stacks included."""
    return stack.reshape(len(stack), prod(stack.shape[1:]))


def draw_noise(like: Weights, std: float, generator: np.random.Generator) -> dict[str, Tensor]:
    """Independent Gaussian noise for every entry of one model, drawn as one flat vector on the CPU."""
    total = sum(t.numel() for t in like.values())
    first = next(iter(like.values()))
    kind = np.float64 if first.dtype == torch.float64 else np.float32
    drawn = torch.from_numpy(generator.standard_normal(total, dtype=kind)).mul_(std).to(first.device)
    parts = torch.split(drawn, [t.numel() for t in like.values()])
    return {name: part.view(t.shape) for (name, t), part in zip(like.items(), parts, strict=True)}

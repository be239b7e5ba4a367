"""Record-level clipping and noise inside a local step: DP-SGD as Opacus does it."""

import torch
from torch import Tensor

from fedceo.training.work import Weights


def clipped_sum(gradients: Weights, present: Tensor, clip: float) -> dict[str, Tensor]:
    """Sum over records of gradients scaled to L2 norm at most `clip`, over all parameters together.

    Args:
        gradients: name -> (B, ...), one gradient a record.
        present: (B,) 1 for a record, 0 for filling.
    """
    norms = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
    factors = (clip / (norms + 1e-6)).clamp_max(1.0) * present
    return {name: torch.einsum("b,b...->...", factors, g) for name, g in gradients.items()}


def draw_noise(like: Weights, std: float, generator: torch.Generator) -> dict[str, Tensor]:
    """Independent Gaussian noise for every entry of one model, drawn as one flat vector on the CPU."""
    total = sum(t.numel() for t in like.values())
    first = next(iter(like.values()))
    flat = torch.randn(total, generator=generator, dtype=first.dtype).mul_(std).to(first.device)
    parts = torch.split(flat, [t.numel() for t in like.values()])
    return {name: part.view(t.shape) for (name, t), part in zip(like.items(), parts, strict=True)}

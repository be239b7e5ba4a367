"""Cross-entropy and clipping factors on a GPU, one kernel each."""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from fedceo.training.batched.cohort import Batch
from fedceo.training.cuda import row_kernels
from fedceo.training.cuda.convolution import kept_in

ROUNDING = {torch.float32: 2.0**-20, torch.float16: 2.0**-9}
"""The part by which a linear layer's gradient may be longer than its norm says, by the precision of products."""

ENTRIES = 4096
"""Logits that a program holds at a time."""


def cross_entropy(logits: Tensor, batch: Batch, mean: bool) -> tuple[Tensor, Tensor]:
    """See cross_entropy of batched/losses.py."""
    clients, slots, classes = logits.shape
    losses, dy, tile = logits.new_empty(clients), torch.empty_like(logits), triton.next_power_of_2(classes)
    row_kernels.cross_entropy_kernel[(clients,)](
        logits, batch.labels, batch.counts, losses, dy, slots, classes, MEAN=mean,
        TILE=tile, AT_ONCE=max(1, min(64, ENTRIES // tile)), num_warps=4,
    )  # fmt: skip
    return losses, dy


def clip_factors(squares: Sequence[Tensor], batch: Batch, clips: Tensor) -> Tensor:
    """See clip_factors of batched/losses.py."""
    parts = torch.stack(list(squares))
    factors = torch.empty_like(parts[0])
    row_kernels.clip_factors_kernel[(triton.cdiv(factors.numel(), 128),)](
        parts, batch.counts, clips, factors, factors.numel(), factors.shape[1], PARTS=len(parts), TILE=128,
        MARGIN=1 + ROUNDING[kept_in()],
    )  # fmt: skip
    return factors

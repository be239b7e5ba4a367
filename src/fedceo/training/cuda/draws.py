"""Random numbers of many clients' streams on a GPU, one kernel each."""

from collections.abc import Sequence

import numpy as np
import torch
import triton
from torch import Tensor

from fedceo.training.cuda import draw_kernels

NUMBERS = draw_kernels.NUMBERS.value


def fill_numbers(keys: Tensor, counts: Sequence[int]) -> Tensor:
    """Numbers below 2^63, as many as `counts` says of each of the (K,) keys' streams, one stream after another."""
    ends = np.cumsum(counts)
    places = torch.from_numpy(np.stack([ends - counts, counts])).to(keys.device)
    out = torch.empty(int(ends[-1]), dtype=torch.int64, device=keys.device)
    draw_kernels.fill_numbers_kernel[(len(keys), triton.cdiv(max(1, *counts), NUMBERS))](out, keys, *places)
    return out


def fill_masks(key: Tensor, rows: tuple[int, int], shape: tuple[int, ...], keep: float) -> Tensor:
    """(steps, batch, *shape) masks of 0 and 1 / keep of one key's stream; rows: (steps, batch)."""
    out = torch.empty(*rows, *shape, device=key.device)
    size = out[0].numel()
    draw_kernels.fill_masks_kernel[(rows[0], triton.cdiv(size, NUMBERS))](out, key, size, KEEP=keep)
    return out

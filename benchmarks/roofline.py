"""The limit of a CPU: its floating-point rate in one large product, and the operations that a client's round takes."""

import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

SIDE = 2048


def peak() -> float:
    """Operations per millisecond and all of torch's threads, in the fastest of some large float32 products."""
    a, best = torch.randn(SIDE, SIDE), float("inf")
    for _ in range(8):
        begin = time.perf_counter()
        torch.mm(a, a)
        best = min(best, time.perf_counter() - begin)
    return 2 * SIDE**3 / best / 1e3


def operations(model: nn.Module, records: torch.Tensor) -> int:
    """Multiplications and additions of one training pass over the records: outputs, gradients of inputs and of weights.

    Clipping single records' gradients needs as many, where these are formed: no operation of a product is saved.
    """
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(records), torch.zeros(len(records), dtype=torch.int64)).backward()
    return int(counter.get_total_flops())

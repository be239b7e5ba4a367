"""The limit of a CPU: its floating-point rate in one large product, and the operations that a client's round takes.

    python benchmarks/roofline.py

prints, for one core, which share of that rate the second convolution of pfl's CNN reaches in a batch of 10, alone and
warm: nobody who calls torch's convolutions can do it faster, and nine tenths of the operations are there.
"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

SIDE = 2048


def fastest(work: Callable[[], object], times: int) -> float:
    """Milliseconds that the work takes when nothing disturbs it."""
    best = float("inf")
    for _ in range(times):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return 1e3 * best


def peak() -> float:
    """Operations per millisecond of all of torch's threads, in the fastest of some large float32 products."""
    a = torch.randn(SIDE, SIDE)
    return 2 * SIDE**3 / fastest(lambda: torch.mm(a, a), 8)


def operations(model: nn.Module, records: torch.Tensor) -> int:
    """Multiplications and additions of one training pass over the records: outputs, gradients of inputs and of weights.

    Clipping single records' gradients needs as many, where these are formed: no operation of a product is saved.
    """
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(records), torch.zeros(len(records), dtype=torch.int64)).backward()
    return int(counter.get_total_flops())


def main() -> None:
    torch.set_num_threads(1)
    limit, batch = peak(), 10
    print(f"one core: {limit / 1e6:.0f} GFLOP/s in one product of large float32 matrices")
    x = torch.randn(batch, 32, 30, 30).contiguous(memory_format=torch.channels_last)
    w = torch.randn(64, 32, 3, 3)
    g, count = F.conv2d(x, w), 2 * batch * 28**2 * 9 * 32 * 64

    def backward(*wanted: bool) -> object:
        geometry = ([64], [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        return torch.ops.aten.convolution_backward(g, x, w, *geometry, wanted)

    ways: dict[str, Callable[[], object]] = {
        "outputs": lambda: F.conv2d(x, w),
        "gradients of inputs": lambda: backward(True, False, False),
        "gradients of weights": lambda: backward(False, True, True),
    }
    for way, work in ways.items():
        spent = fastest(work, 200)
        print(f"{way:<22}{spent:>7.2f} ms{count / spent / limit:>7.0%} of the rate")


if __name__ == "__main__":
    main()

"""The limit of a CPU: its floating-point rate, and how long the parts of a client's round take on one core.

    python benchmarks/roofline.py [--out FILE]

For the MLP and for pfl's CNN of rounds.py, part by part: "alone", the CPU time of the fastest kernel that torch has for
it, called again and again with its operands in the cache, and the floor, the longer of its operations at the highest
rate that any product here reached and its bytes at the rate of a copy inside the cache. Nobody who calls torch's
kernels takes less than the sum of the first on a core, and nobody at all less than that of the second.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from report import RESULTS, write
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

SIDE = 2048
COPIED = 2**21
"""Floats of a copy: more than a core's own cache holds, less than the cores' common one."""


def fastest(work: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Milliseconds that the work takes when nothing disturbs it."""
    best = float("inf")
    for _ in range(times):
        begin = clock()
        work()
        best = min(best, clock() - begin)
    return 1e3 * best


def peak() -> float:
    """Operations per millisecond of all of torch's threads, in the fastest of some large float32 products."""
    a = torch.randn(SIDE, SIDE)
    return 2 * SIDE**3 / fastest(lambda: torch.mm(a, a), 8)


def operations(model: nn.Module, records: Tensor) -> int:
    """Multiplications and additions of one training pass over the records: outputs, gradients of inputs and of weights.

    Clipping single records' gradients needs as many, where these are formed: no operation of a product is saved.
    """
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(records), torch.zeros(len(records), dtype=torch.int64)).backward()
    return int(counter.get_total_flops())


@dataclass(frozen=True)
class Part:
    """A part of a client's round.

    Attributes:
        count: how often a client does it in a round; less than 1 if several clients do it at once.
        operations: multiplications and additions.
        touched: what must be read or written.
    """

    name: str
    count: float
    operations: int
    touched: tuple[Tensor, ...]
    work: Callable[[], object]


def mlp_parts(clients: int = 5, batch: int = 64, steps: int = 10) -> Iterator[Part]:
    """784 -> 64 -> 10 without biases; several clients at a time, as one thread trains them."""
    count, rate = steps / clients, 1e-9
    records, places = torch.randn(clients * 600, 784), torch.randperm(clients * 600)[: clients * batch]
    x, g = torch.randn(clients, batch, 784), torch.randn(clients, batch, 64)
    w, v, dy = torch.randn(clients, 64, 784), torch.randn(clients, 10, 64), torch.randn(clients, batch, 10)
    large, small = 2 * clients * batch * 784 * 64, 2 * clients * batch * 64 * 10
    yield Part("records", count, 0, (x, x), lambda: records.index_select(0, places))
    yield Part("first layer, outputs", count, large, (x, w, g), lambda: torch.bmm(x, w.mT))
    yield Part("first layer, step", count, large, (x, w, w, g), lambda: torch.baddbmm(w, g.mT, x, alpha=-rate, out=w))

    def second() -> None:
        torch.bmm(v, g.mT)
        torch.bmm(dy, v)
        torch.baddbmm(v, dy.mT, g, alpha=-rate, out=v)

    yield Part("second layer", count, 3 * small, (g, g, v, v, dy), second)
    yield Part("ReLU and mask, both ways", count, 0, (g,) * 6, lambda: (g.mul_(g).relu_(), _cut(g, g).mul_(g)))
    yield Part("models, copied and averaged", 1 / clients, 0, (w, w, w), lambda: (w.clone(), w.sum(0)))


def cnn_parts(batch: int = 10, steps: int = 5) -> Iterator[Part]:
    """Two convolutions of 3 x 3 to 32 and 64 channels, pooling, 12544 -> 128 -> 10."""
    rate = 1e-9

    def images(*shape: int) -> Tensor:
        return torch.randn(*shape).contiguous(memory_format=torch.channels_last)

    x, h, z = images(batch, 3, 32, 32), images(batch, 32, 30, 30), images(batch, 64, 28, 28)
    w1, b1, w2, b2 = torch.randn(32, 3, 3, 3), torch.randn(32), torch.randn(64, 32, 3, 3), torch.randn(64)
    y, winners = F.max_pool2d(z, 2, return_indices=True)
    w3, w4 = torch.randn(128, 12544), torch.randn(10, 128)
    f, a, dy = torch.randn(batch, 12544), torch.randn(batch, 128), torch.randn(batch, 10)
    first, second = 2 * batch * 900 * 27 * 32, 2 * batch * 784 * 288 * 64
    large, small = 2 * batch * 12544 * 128, 2 * batch * 128 * 10

    def back(g: Tensor, x: Tensor, w: Tensor, needs_dx: bool) -> object:
        geometry = ([len(w)], [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        return torch.ops.aten.convolution_backward(g, x, w, *geometry, [needs_dx, True, False])

    def unpool() -> object:
        geometry = ([2, 2], [2, 2], [0, 0], [1, 1], False)
        return torch.ops.aten.max_pool2d_with_indices_backward(y, z, *geometry, winners)

    records, places = torch.randn(1000, 32, 32, 3), torch.randperm(1000)[:batch]
    yield Part("records", steps, 0, (x, x), lambda: records.index_select(0, places))
    yield Part("first convolution, outputs", steps, first, (x, w1, h), lambda: F.conv2d(x, w1, b1))
    yield Part("first convolution, step", steps, first, (x, w1, h), lambda: back(h, x, w1, False))
    yield Part("second convolution, outputs", steps, second, (h, w2, z), lambda: F.conv2d(h, w2, b2))
    yield Part("second convolution, back", steps, 2 * second, (h, h, w2, z), lambda: back(z, h, w2, True))
    yield Part("ReLUs, both ways", steps, 0, (h,) * 5 + (y,) * 5, lambda: [(t.relu_(), _cut(t, t)) for t in (h, y)])
    yield Part("pooling", steps, 0, (z, y, winners), lambda: F.max_pool2d(z, 2, return_indices=True))
    yield Part("pooling, back", steps, 0, (y, z, winners), unpool)

    def reorder() -> object:
        return y.flatten(1), f.view(y.shape).contiguous(memory_format=torch.channels_last)

    yield Part("channels last and first", steps, 0, (y,) * 4, reorder)
    yield Part("first linear layer, outputs", steps, large, (w3, f, a), lambda: F.linear(f, w3))
    yield Part("first linear layer, back", steps, large, (w3, f, a), lambda: torch.mm(a, w3))
    yield Part("first linear layer, step", steps, large, (w3, w3, f, a), lambda: w3.addmm_(a.T, f, alpha=-rate))

    def last() -> None:
        F.linear(a, w4)
        torch.mm(dy, w4)
        w4.addmm_(dy.T, a, alpha=-rate)

    yield Part("second linear layer", steps, 3 * small, (w4, w4, a, a, dy), last)
    yield Part("models, copied and averaged", 1, 0, (w3,) * 4, lambda: (w3.clone(), w3.add_(w3)))


def _cut(dy: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward.grad_input(dy, y, 0, grad_input=dy)


def measure(parts: Iterator[Part]) -> list[dict[str, Any]]:
    """A row for each part: how often, operations and bytes at a time, and microseconds alone."""
    return [
        {
            "part": part.name,
            "count": part.count,
            "operations": part.operations,
            "bytes": sum(t.nbytes for t in part.touched),
            "alone_us": 1e3 * fastest(part.work, 150, time.process_time),
        }
        for part in parts
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "roofline-cpu.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    a, b = torch.randn(SIDE // 2, SIDE // 2), torch.randn(COPIED)
    product = 2 * (SIDE // 2) ** 3 / fastest(lambda: torch.mm(a, a), 20, time.process_time)
    bandwidth = 2 * b.nbytes / fastest(lambda: b.clone(), 60, time.process_time)
    settings = {"MLP": measure(mlp_parts()), "pfl's CNN": measure(cnn_parts())}
    rates = [1e3 * row["operations"] / row["alone_us"] for rows in settings.values() for row in rows]
    rate = max(product, *rates)
    print(f"one core: {product / 1e6:.0f} GFLOP/s in a product of large float32 matrices, {rate / 1e6:.0f} at most;")
    print(f"a copy in the cache moves {bandwidth / 1e6:.0f} GB/s")
    found: dict[str, Any] = {}
    for name, rows in settings.items():
        print(f"\n{name + ', us a client and round':<40}{'MFLOP':>9}{'MB':>8}{'alone':>9}{'floor':>9}")
        for row in rows:
            limit = 1e3 * max(row["operations"] / rate, row["bytes"] / bandwidth)
            row |= {"floor_us": min(limit, row["alone_us"])}
            spent = [row["count"] * row[key] for key in ("operations", "bytes", "alone_us", "floor_us")]
            print(f"{row['part']:<40}{spent[0] / 1e6:>9.1f}{spent[1] / 1e6:>8.1f}{spent[2]:>9.0f}{spent[3]:>9.0f}")
        sums = {key: sum(row["count"] * row[f"{key}_us"] for row in rows) / 1e3 for key in ("alone", "floor")}
        found[name] = {f"{key}_ms": spent for key, spent in sums.items()} | {"parts": rows}
        print(f"{'sum, ms':<57}{sums['alone']:>9.2f}{sums['floor']:>9.2f}")
    numbers = {"product_gflops": product / 1e6, "most_gflops": rate / 1e6, "copy_gb_s": bandwidth / 1e6}
    write(numbers | {"settings": found}, options.out)


if __name__ == "__main__":
    main()

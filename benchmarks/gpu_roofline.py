"""Where the time of a LeNet-5 step goes on a GPU: bytes, operations and the share of the machine's limit, by kernel.

    python benchmarks/gpu_roofline.py [--out FILE]

The setting is that of gpu_rounds.py with TF32, record level and distributed. Time is measured by torch's profiler over
one round. Bytes are the fewest that a kernel must move through device memory, operations those that it executes with
real records, without the filling of tiles. The limit of a kernel is the longer of bytes over the bandwidth of a large
copy and operations over the rate of a large float16 product, both measured here; "share" is that limit over the time.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_rounds import CIFAR, make, make_data, seconds
from torch.profiler import ProfilerActivity, profile

CLIENTS, EPOCHS, STEPS = 10, 30, 210
RECORDS = CLIENTS * 400 * EPOCHS / STEPS
"""Records of a step, of all clients together."""
CONVOLUTIONS, LINEAR = 2400 + 32 + 51200 + 64, 1600 * 512 + 512 * 512 + 512 * 10
WIDE = 1600 * 512 + 512 * 512
"""Weights of the linear layers whose backward products are kernels of ours."""
ROW = CLIENTS * (CONVOLUTIONS + LINEAR + 512 + 512 + 10)

Work = tuple[float, float]


def work_of(record: bool) -> dict[str, Work]:
    """Kernel -> bytes and operations of one step."""
    image, first, second, pooled = 16 * 16 * 16 * 2, 196 * 32, 100 * 64, 25 * 64
    spread, taps, inner = 144 * 128, 75 * 32, 800 * 64
    rows: dict[str, Work] = {
        "gather_kernel": (2 * image, 0),
        "first_forward_kernel": (image + 3 * first, 2 * 196 * spread),
        "forward_kernel": (2 * first + 5 * pooled, 2 * 100 * inner),
        "unpool_kernel": (5 * pooled + 2 * second, 0),
        "input_gradients_kernel": (2 * second + 2 * first, 2 * 196 * 1600 * 32),
    }
    kept = (2 * taps, 2 * inner) if record else (0, 0)  # single records' gradients are written down
    of_second = "record_gradients_kernel" if record else "group_gradients_kernel"
    rows["first_gradients_kernel"] = (image + 3 * first + kept[0], 2 * 784 * taps)
    rows[of_second] = (2 * first + 2 * second + kept[1], 2 * 100 * inner)
    if record:
        rows["weighted_sum_kernel"] = (sum(kept), 0)
    found = {name: (RECORDS * size, RECORDS * operations) for name, (size, operations) in rows.items()}
    products = 2 * RECORDS * LINEAR
    passes = 3 if record else 2  # forward and backward, and with noise the gradient is written down
    wide, wide_products = CLIENTS * 4 * WIDE, 2 * RECORDS * WIDE
    found["linear_input_gradients_kernel"] = (wide, wide_products)
    found["products of linear layers"] = (passes * 4 * CLIENTS * LINEAR - wide, passes * products - wide_products)
    if record:
        found["take_step_kernel"] = (3 * 4 * ROW, 0)
    else:
        found["linear_step_kernel"] = (2 * 4 * CLIENTS * LINEAR, products)
        found["take_step_kernel"] = (3 * 4 * CLIENTS * CONVOLUTIONS, 0)
    return found


def median_seconds(task: Callable[[], Any], repeats: int = 20) -> float:
    """Median over repeats, by the device's own clock."""
    task()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        task()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times)[repeats // 2]


def ceilings() -> tuple[float, float]:
    """Bytes a second of a large copy, read and written, and operations a second of a large float16 product."""
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))
    copied = 2 * source.numel() * 4 / median_seconds(lambda: target.copy_(source))
    return copied, 2 * 8192**3 / median_seconds(lambda: torch.mm(a, b))


def kernel_times(mechanism: str) -> tuple[float, dict[str, float]]:
    """Seconds of a round, and seconds of a step by kernel; every kernel without a name of ours is its library's."""
    simulation = make(CIFAR, make_data(CIFAR), mechanism, "fedavg", 10**6, True)
    for _ in range(3):
        seconds(simulation)
    whole = min(seconds(simulation) for _ in range(3))
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        seconds(simulation)
    times: dict[str, float] = {}
    for event in profiler.key_averages():
        name = event.key
        if "gemm" in name or "cutlass" in name:
            name = "products of linear layers"
        elif not name.endswith("_kernel") or "::" in name:
            name = "torch's other kernels"
        times[name] = times.get(name, 0.0) + event.self_device_time_total / 1e6 / STEPS
    return whole, times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the numbers as JSON")
    options = parser.parse_args()
    bandwidth, rate = ceilings()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: a copy {bandwidth / 1e12:.2f} TB/s,")
    print(f"a float16 product {rate / 1e12:.0f} TFLOP/s")
    about: dict[str, Any] = {
        "machine": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "bytes_a_second": bandwidth,
        "operations_a_second": rate,
    }
    for mechanism in ("record", "distributed"):
        whole, times = kernel_times(mechanism)
        work = work_of(mechanism == "record")
        rows: list[dict[str, Any]] = []
        print(f"\nLeNet-5, {mechanism}: {whole:.3f} s a round, {whole / STEPS * 1e6:.0f} us a step")
        print(f"{'':<28}{'us':>8}{'MB':>8}{'GFLOP':>8}{'limit us':>10}{'share':>8}")
        for name, time_ in sorted(times.items(), key=lambda item: -item[1]):
            size, operations = work.get(name, (0.0, 0.0))
            limit = max(size / bandwidth, operations / rate)
            rows.append({"kernel": name, "seconds": time_, "bytes": size, "operations": operations, "limit": limit})
            share = f"{limit / time_:>8.0%}" if limit else ""
            figures = f"{size / 1e6:>8.1f}{operations / 1e9:>8.1f}{limit * 1e6:>10.1f}" if limit else ""
            print(f"{name[:27]:<28}{time_ * 1e6:>8.1f}{figures}{share}")
        limits = sum(row["limit"] for row in rows)
        spent = sum(times.values())
        print(f"{'all kernels':<28}{spent * 1e6:>8.1f}{'':>16}{limits * 1e6:>10.1f}{limits / spent:>8.0%}")
        print(f"{'between and around them':<28}{(whole / STEPS - spent) * 1e6:>8.1f}")
        about[mechanism] = {"round": whole, "kernels": rows}
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()

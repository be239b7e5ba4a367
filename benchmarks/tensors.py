"""Time of the truncated t-SVD against the two ways everybody else would write it, on the same input in one run.

    python benchmarks/tensors.py [--device cuda] [--quick]

(a) a NumPy loop of complex128 SVDs with full_matrices=True over all K slices, the way of the original program;
(b) one batched thin complex64 torch.linalg.svd over all K slices, on the same device as ours.

Input is float32 noise around a common low-rank model; the threshold is the median singular value of the frequencies
other than 0, so that no slice can be skipped as zero. Times are medians of repeated runs after a first one. A baseline
marked ~ was timed on ten slices and scaled by K / 10, since all of them would take an hour. The error is that of our
result against (a), relative to the input.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedceo.tensors import truncated_tsvd, truncated_tsvds

LENET5 = {
    "conv1.weight": (75, 32), "conv1.bias": (1, 32), "conv2.weight": (800, 64), "conv2.bias": (1, 64),
    "fc1.weight": (1600, 512), "fc1.bias": (1, 512), "fc2.weight": (512, 512), "fc2.bias": (1, 512),
    "fc3.weight": (512, 10), "fc3.bias": (1, 10),
}  # fmt: skip
MLP = {"input.weight": (784, 64), "hidden.weight": (64, 37)}
SAMPLED = 10


def make_input(d: int, h: int, clients: int, device: str) -> Tensor:
    rng = torch.Generator(device).manual_seed(d * h + clients)
    rank = min(d, h, 5)
    left = torch.randn(d, rank, generator=rng, device=device)
    common = left @ torch.randn(rank, h, generator=rng, device=device) / rank
    return torch.randn(d, h, clients, generator=rng, device=device).add_(common.unsqueeze(2))


def median_threshold(w: Tensor) -> float:
    """The median singular value over (at most ten of) the frequencies other than 0."""
    clients = w.shape[2]
    frequencies = np.unique(np.linspace(1, clients // 2, num=min(SAMPLED, clients // 2), dtype=int))
    wave = torch.arange(clients, device=w.device) * (2 * torch.pi / clients)
    values = [
        torch.linalg.svdvals(torch.complex(w @ torch.cos(f * wave), -(w @ torch.sin(f * wave))))
        for f in frequencies.tolist()
    ]
    return float(torch.cat(values).median())


def by_numpy(slices: np.ndarray, threshold: float) -> np.ndarray:
    out = np.empty_like(slices)
    for i in range(slices.shape[2]):
        u, s, vh = np.linalg.svd(slices[:, :, i], full_matrices=True)
        middle = np.zeros(slices.shape[:2])
        np.fill_diagonal(middle, np.maximum(s - threshold, 0))
        out[:, :, i] = u @ middle @ vh
    return out


def by_torch(slices: Tensor, threshold: float) -> Tensor:
    u, s, vh = torch.linalg.svd(slices, full_matrices=False)
    return (u * (s - threshold).clamp_min(0).unsqueeze(1)) @ vh


def whole_by_numpy(w: Tensor, threshold: float) -> np.ndarray:
    slices = np.fft.fft(w.cpu().numpy().astype(np.float64), axis=2)
    return np.fft.ifft(by_numpy(slices, threshold), axis=2).real


def whole_by_torch(w: Tensor, threshold: float) -> Tensor:
    slices = torch.fft.fft(w, dim=2).movedim(2, 0).contiguous()
    return torch.fft.ifft(by_torch(slices, threshold).movedim(0, 2), dim=2).real


def smooth_all(tensors: dict[str, Tensor], thresholds: dict[str, float]) -> list[Tensor]:
    return truncated_tsvds(list(tensors.values()), [thresholds[name] for name in tensors])


def seconds(work: Callable[[], object], device: str, repeats: int) -> float:
    def once() -> float:
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    first = once()
    return first if repeats == 0 else statistics.median(once() for _ in range(repeats))


def compare(name: str, d: int, h: int, clients: int, device: str, repeats: int) -> dict[str, object]:
    w = make_input(d, h, clients, device)
    threshold = median_threshold(w)
    ours = seconds(lambda: truncated_tsvd(w, threshold), device, repeats if clients < 1000 else 1)
    row: dict[str, object] = {"tensor": name, "shape": [d, h, clients], "device": device, "ours_s": ours}
    if clients <= SAMPLED:
        row["a_s"] = seconds(lambda: whole_by_numpy(w, threshold), "cpu", 0 if d * h > 100_000 else repeats)
        row["b_s"] = seconds(lambda: whole_by_torch(w, threshold), device, repeats)
        expected = torch.from_numpy(whole_by_numpy(w, threshold)).to(device)
        row["error"] = float((truncated_tsvd(w, threshold) - expected).norm() / w.norm())
    else:
        few = torch.fft.fft(w[:, :, :SAMPLED], dim=2).movedim(2, 0).contiguous()
        as_numpy = few[:3].movedim(0, 2).cpu().numpy().astype(np.complex128)
        row["a_s"] = seconds(lambda: by_numpy(as_numpy, threshold), "cpu", 0) * clients / 3
        row["b_s"] = seconds(lambda: by_torch(few, threshold), device, 1) * clients / SAMPLED
        row["baselines_scaled"] = True
    return row


def show(row: dict[str, object]) -> None:
    ours, a, b = (float(str(row[key])) for key in ("ours_s", "a_s", "b_s"))
    about = "~" if row.get("baselines_scaled") else " "
    error = f"{row['error']:.1e}" if "error" in row else "-"
    shape = "x".join(str(n) for n in row["shape"]) if isinstance(row["shape"], list) else "-"
    print(
        f"{row['tensor']:<16}{shape:>14}{1e3 * ours:>12.2f}{about}{1e3 * a:>12.2f}{about}{1e3 * b:>12.2f}"
        f"{a / ours:>10.1f}x{b / ours:>9.1f}x{error:>10}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="only K = 10")
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False

    device = options.device
    machine = (
        torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    print(f"truncated t-SVD on {device} ({machine}), torch {torch.__version__}; times in ms")
    heads = f"{'ours':>12} {'(a) numpy':>12} {'(b) torch':>12}{'vs (a)':>11}{'vs (b)':>10}{'error':>10}"
    print(f"{'tensor':<16}{'shape':>14}{heads}")
    rows = []
    for model, layers in (("LeNet-5", LENET5), ("MLP", MLP)):
        parts = [compare(name, d, h, 10, device, options.repeats) for name, (d, h) in layers.items()]
        whole: dict[str, object] = {"tensor": f"{model}, all", "shape": None, "device": device}
        tensors = {name: make_input(d, h, 10, device) for name, (d, h) in layers.items()}
        thresholds = {name: median_threshold(w) for name, w in tensors.items()}
        whole["ours_s"] = seconds(partial(smooth_all, tensors, thresholds), device, options.repeats)
        for key in ("a_s", "b_s"):
            whole[key] = sum(float(str(part[key])) for part in parts)
        for row in (*parts, whole):
            show(row)
        rows += [*parts, whole]
    for clients in (10,) if options.quick else (10, 100, 1000):
        rows.append(compare("fc1.weight", 1600, 512, clients, device, options.repeats))
        show(rows[-1])
    if options.out:
        about = {"machine": machine, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "rows": rows}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()

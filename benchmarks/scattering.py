"""The scattering features of 50,000 images of 3x32x32: computed for the first time, and from the cache.

    python benchmarks/scattering.py [--images 50000] [--device cpu] [--out FILE]

Random images stand for CIFAR-10's, since every image takes the same time. The cache is a temporary folder. Processor
seconds are those of all threads: on a machine that does other work too, they tell what it would take alone.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
from report import RESULTS, write

from fedceo.data import Federation
from fedceo.models import build_model
from fedceo.simulation.summary import machine
from fedceo.training.engine import choose_device
from fedceo.training.features import on_features


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = choose_device(options.device)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FEDCEO_CACHE"] = cache
        data = made_up(options.images)
        model = build_model("scattering", data.shape, data.classes, 0).to(device)
        on_features(model, made_up(8))  # whatever a library does once is no part of the measurement
        rows = [{"features": kind, **timed(model, data)} for kind in ("computed", "from the cache")]
    for row in rows:
        shown = f"{row['seconds']:.1f} s, {row['processor_seconds']:.1f} s of processors"
        print(f"{options.images} images on {machine(device)}, {row['features']}: {shown}")
    kind = "h200" if device.type == "cuda" else "cpu"
    numbers = {"device": machine(device), "images": options.images, "rows": rows}
    write(numbers, options.out or RESULTS / f"scattering-{kind}.json")


def timed(model: torch.nn.Module, data: Federation) -> dict[str, float]:
    begin, busy = time.perf_counter(), time.process_time()
    on_features(model, data)
    return {"seconds": time.perf_counter() - begin, "processor_seconds": time.process_time() - busy}


def made_up(images: int) -> Federation:
    """Random images under the name of a published data set, whose features are kept on disk."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(256, (images, 3, 32, 32), generator=rng, dtype=torch.uint8)
    y, none = torch.zeros(images, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    return Federation("cifar10", x, y, [torch.arange(images)], none, (), x[:0], y[:0], classes=10)


if __name__ == "__main__":
    main()

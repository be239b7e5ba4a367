"""The cost of a round, as formulas fitted to measurements, and what they say of rounds too large for this machine.

    python benchmarks/cost_model.py [--quick] [--out FILE.json]     # about 10 minutes
    python tools/pages/scale_page.py                                 # its tables into docs/scale.md

Core-seconds, not wall-clock: everything runs on one thread and processor time is taken, so that others on the machine
disturb little. Each formula is a sum of non-negative terms, fitted in relative error:

training   S steps of K clients with P parameters, batches of B records, M and C multiply-adds a record in linear layers
           and convolutions: S, K, K P, K S, K S P, K S B M, K S B C; the first is Python, which a batch shares; and
           K Q, K S Q for the Q entries by which a model exceeds a core's cache
uploads    K uploads of P entries, clipped and noised by each client (distributed) or left as they are: K, K P
t-SVD      of a (d, h, K) stack with F = floor(K/2) + 1 frequencies, n = min(d, h), and a threshold that leaves no slice
           out: F, K d h, F d h n, F n^3
transfer   a result's way from a Ray worker to the server on the same machine, wall-clock: 1, bytes

The formulas are then checked on sizes beyond those that they were fitted to: the largest that run here.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # core-seconds; read when torch is loaded

import numpy as np
import torch
from report import RESULTS, write
from scale import RECORDS, make_federation, make_model
from scipy.optimize import nnls
from tensors import make_input, median_threshold
from torch import Tensor, nn

from fedceo.experiment.file import parse_experiment
from fedceo.mechanisms.base import MECHANISMS
from fedceo.mechanisms.uploads import Contribution, Senders
from fedceo.models import parameters_of
from fedceo.simulation.rounds import Simulation
from fedceo.tensors import fold, truncated_tsvd
from fedceo.training.context import TrainingContext
from fedceo.training.engine import choose_engine, make_trainer
from fedceo.training.schedule import Schedule
from fedceo.training.work import Work

STEPS, BATCH = 30, 20
"""The work of a client in a round of the table: one epoch over 600 records."""
NETWORK = 1.25e9
"""Bytes a second into the server that the table reckons with: ten gigabits."""
COHORTS = (10**3, 10**4, 10**5, 10**6)
LARGE = tuple((4096, 4096) for _ in range(6))
"""Layers of a model of 10^8 parameters."""

CACHED = 2**20
"""Entries of a model that a core's cache holds."""

Terms = list[float]


def core_seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """The least of some, after one that is not counted: others can only add."""
    work()
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def multiply_adds(model: nn.Module) -> tuple[float, float]:
    """For one 28 x 28 record, in linear layers and in convolutions."""
    counts = [0.0, 0.0]

    def count(layer: nn.Module, _: Any, out: Tensor) -> None:
        if isinstance(layer, nn.Linear):
            counts[0] += layer.weight.numel()
        elif isinstance(layer, nn.Conv2d):
            counts[1] += layer.weight.numel() * out.shape[-1] * out.shape[-2]

    hooks = [layer.register_forward_hook(count) for layer in model.modules()]
    with torch.no_grad():
        model(torch.zeros(1, 1, 28, 28))
    for hook in hooks:
        hook.remove()
    return counts[0], counts[1]


def training_terms(steps: int, cohort: int, parameters: float, batch: int, linear: float, convolution: float) -> Terms:
    each = steps * cohort
    beyond = max(parameters - CACHED, 0.0)
    once = [steps, cohort, cohort * parameters, cohort * beyond, each * beyond]
    return [*once, each, each * parameters, each * batch * linear, each * batch * convolution]


def upload_terms(cohort: float, parameters: float) -> Terms:
    return [cohort, cohort * parameters]


def tsvd_terms(d: int, h: int, cohort: int) -> Terms:
    n, frequencies = min(d, h), cohort // 2 + 1
    return [frequencies, cohort * d * h, frequencies * d * h * n, frequencies * n**3]


def transfer_terms(size: float) -> Terms:
    return [1.0, size]


def fit(terms: Sequence[Terms], seconds: Sequence[float]) -> Terms:
    """Non-negative factors for which the formula is nearest to the measurements in relative error."""
    rows = np.array(terms) / np.array(seconds)[:, None]
    scale = np.where(rows.any(0), rows.max(0), 1.0)  # few points may not have a term at all
    return (nnls(rows / scale, np.ones(len(rows)))[0] / scale).tolist()


def cost(factors: Terms, terms: Terms) -> float:
    return float(np.dot(factors, terms))


def measure_training(units: int, cohort: int, batch: int, steps: int) -> tuple[Terms, float]:
    model, data = make_model(units), make_federation(1000)
    context = TrainingContext(model, data, Schedule(0), torch.device("cpu"), torch.float32)
    trainer = make_trainer(context, choose_engine(context, "auto"))
    starts = {name: w.expand(cohort, *w.shape) for name, w in parameters_of(model).items()}
    size = sum(w.numel() for w in parameters_of(model).values())
    work = Work(epochs=steps * batch // RECORDS + 1, batch_size=batch, learning_rate=0.01, steps=steps)
    seconds = core_seconds(lambda: trainer.train(starts, range(cohort), 1, work))
    return training_terms(steps, cohort, size, batch, *multiply_adds(model)), seconds


def measure_uploads(kind: str, cohort: int, parameters: int) -> tuple[Terms, float]:
    mechanism = MECHANISMS[kind](1.0, 1.0, Schedule(0), min_reports=cohort, divisor=float(cohort))
    starts = {"w": torch.zeros(parameters).expand(cohort, -1)}
    trained = {"w": torch.randn(cohort, parameters)}
    senders = Senders(1, tuple(range(cohort)), torch.ones(cohort, dtype=torch.float64))
    seconds = core_seconds(lambda: mechanism.privatise(Contribution(starts, trained), senders, {}).mean())
    return upload_terms(cohort, parameters), seconds


def measure_tsvd(d: int, h: int, cohort: int, repeats: int = 2) -> tuple[Terms, float]:
    w = make_input(d, h, cohort, "cpu")
    threshold = median_threshold(w)
    return tsvd_terms(d, h, cohort), core_seconds(lambda: truncated_tsvd(w, threshold), repeats)


def measure_transfer(sizes: Sequence[int]) -> list[tuple[Terms, float]]:
    from fedceo.scale.cluster import ray

    ray.init(
        "local", num_cpus=1, object_store_memory=2**30, include_dashboard=False, log_to_driver=False,
        logging_level="ERROR",
    )  # fmt: skip
    try:
        give = ray.remote(lambda size: np.ones(size, np.uint8))
        points = []
        for size in sizes:
            times = []
            for _ in range(7):
                begin = time.perf_counter()
                ray.get(give.remote(size)).copy()
                times.append(time.perf_counter() - begin)
            points.append((transfer_terms(size), min(times)))
        return points
    finally:
        ray.shutdown()


def measure_all(quick: bool) -> dict[str, list[tuple[Terms, float]]]:
    """From what a cache holds to what it does not, in the cohort and in the model."""
    models = [(64, 1), (64, 8), (0, 1), (0, 4)]
    layers = [(64, 64, 8), (256, 128, 16)]
    if not quick:
        models += [(16, 8), (16, 256), (64, 256), (256, 1), (256, 32), (1024, 1), (1024, 8), (0, 16)]
        models += [(8192, 1), (8192, 4), (32768, 1)]
        layers += [(64, 64, 64), (256, 64, 32), (784, 64, 128), (256, 256, 8), (256, 256, 32), (1024, 256, 16)]
        layers += [(512, 512, 8), (512, 512, 32), (1024, 512, 16), (1024, 1024, 8), (1536, 1536, 4)]
    uploads = [(4, 10**4), (4, 10**6), (64, 10**4), (16, 10**6), *([] if quick else [(256, 50_000), (4, 10**7)])]
    plans = ((10, 2), (10, 8), (40, 2))
    return {
        "training": [measure_training(units, k, *plan) for units, k in models for plan in plans],
        "distributed": [measure_uploads("distributed", *each) for each in uploads],
        "none": [measure_uploads("none", *each) for each in uploads],
        "tsvd": [measure_tsvd(*each) for each in layers],
        "transfer": measure_transfer([2**10, 2**20, 2**24, 2**26]),
    }


def checks(factors: dict[str, Terms], quick: bool) -> list[dict[str, Any]]:
    """Larger than anything fitted: predicted and measured core-seconds."""
    large, huge = (100, 256) if quick else (1000, 125_790)
    d, h, cohort = (256, 256, 4) if quick else (2048, 2048, 8)
    found = [
        (f"training {large:,} clients, MLP, 3 steps", "training", measure_training(64, large, BATCH, 3)),
        (
            f"training 2 clients, {795 * huge + 10:,} parameters, 1 step",
            "training",
            measure_training(huge, 2, BATCH, 1),
        ),
        (f"distributed noise, {large:,} uploads, MLP", "distributed", measure_uploads("distributed", large, 50_816)),
        (f"t-SVD of {d} x {h}, K = {cohort}", "tsvd", measure_tsvd(d, h, cohort, 1)),
        (f"t-SVD of 784 x 64, K = {large:,}", "tsvd", measure_tsvd(784, 64, large, 1)),
    ]
    rows = [
        {"what": what, "predicted_s": cost(factors[kind], terms), "measured_s": seconds}
        for what, kind, (terms, seconds) in found
    ]
    return [*rows, whole_round(factors, 100 if quick else 1000)]


def whole_round(factors: dict[str, Terms], cohort: int) -> dict[str, Any]:
    """FedCEO with distributed noise on the paper's MLP: training, noise and smoothing of every layer in one."""
    experiment = parse_experiment(
        {
            "data": {"name": "mnist-shaped", "clients": 1000},
            "cohort": {"size": cohort},
            "train": {"rounds": 100, "local_epochs": 1, "batch_size": BATCH, "device": "cpu"},
            "privacy": {"mechanism": "distributed", "noise_multiplier": 1.0},
            "method": {"name": "fedceo", "interval": 1, "threshold": "noise", "kappa": 0.5},
            "evaluation": {"every": 100},
        }
    )
    model = make_model(64)
    simulation = Simulation(experiment, make_federation(1000), model, "mlp", 1.0)
    size = sum(w.numel() for w in parameters_of(model).values())
    layers = [w.shape[:2] for w in fold([parameters_of(model)]).values()]
    predicted = cost(factors["training"], training_terms(3, cohort, size, BATCH, *multiply_adds(model)))
    predicted += cost(factors["distributed"], upload_terms(cohort, size))
    predicted += sum(cost(factors["tsvd"], tsvd_terms(d, h, cohort)) for d, h in layers)
    measured = core_seconds(simulation.step, 2)
    return {"what": f"a whole round of FedCEO, K = {cohort:,}", "predicted_s": predicted, "measured_s": measured}


def predictions(factors: dict[str, Terms]) -> list[dict[str, Any]]:
    """The cores, server and network that rounds of 10^3 to 10^6 clients take, for three models."""
    rows = []
    for name, units in (("MLP", 64), ("LeNet-5", 0), ("six layers of 4096 x 4096", None)):
        if units is None:
            layers: Sequence[Sequence[int]] = LARGE
            linear, convolution = float(sum(d * h for d, h in LARGE)), 0.0
            size = int(linear)
        else:
            model = make_model(units)
            layers = [w.shape[:2] for w in fold([parameters_of(model)]).values()]
            linear, convolution = multiply_adds(model)
            size = sum(w.numel() for w in parameters_of(model).values())
        for cohort in COHORTS:
            training = training_terms(STEPS, cohort, size, BATCH, linear, convolution)
            training[0] *= cohort / 100  # a batch of a hundred clients at a time shares its Python
            rows.append(
                {
                    "model": name,
                    "parameters": size,
                    "cohort": cohort,
                    "training_core_s": cost(factors["training"], training),
                    "noise_core_s": cost(factors["distributed"], upload_terms(cohort, size)),
                    "tsvd_core_s": sum(cost(factors["tsvd"], tsvd_terms(d, h, cohort)) for d, h in layers),
                    "tsvd_of_mean_core_s": sum(cost(factors["tsvd"], tsvd_terms(d, h, 1)) for d, h in layers),
                    "upload_bytes": 4 * size * cohort,
                    "network_s": 4 * size * cohort / NETWORK,
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few and small points: to see that everything runs")
    parser.add_argument("--out", type=Path, default=RESULTS / "cost-model.json")
    options = parser.parse_args()
    torch.manual_seed(0)
    points = measure_all(options.quick)
    factors = {kind: fit([t for t, _ in each], [s for _, s in each]) for kind, each in points.items()}
    errors = {
        kind: [cost(factors[kind], terms) / seconds - 1 for terms, seconds in each] for kind, each in points.items()
    }
    found = {"factors": factors, "checks": checks(factors, options.quick), "predictions": predictions(factors)}
    write({"points": points, "relative_errors": errors} | found, options.out)


if __name__ == "__main__":
    main()

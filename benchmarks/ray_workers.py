"""The gain of a second Ray worker, and the cost of Ray against the same rounds in one process.

    python benchmarks/ray_workers.py [--rounds N] [--quick] [--out FILE.json]

LeNet-5 on CIFAR-10-shaped records, clients of 500 records as in the paper, K = 10 of N = 20 a round, one local epoch,
batches of 64, plain SGD, FedAvg, no noise, no evaluation; the loop and the batch. Pools of one and of two workers, one
core each, and one process with one core take turns on the same rounds in one Ray, so that a slow minute of the machine
falls on all; medians over rounds after a first one. All must end with the same weights. What others do on the machine
is measured before and after: two workers cannot be twice as fast as one where a third process wants their cores. So
the longest way in processor time is given too: of the busiest worker and of this process, which wait for each other.
That is what a round would take on cores of its own.

Then the truncated t-SVD of LeNet-5's largest layer, K = 64, here on one core and spread over the two workers.
"""

import argparse
import os
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # one core for each contender, this process included; read when torch is loaded

import torch
from report import RESULTS, write

from fedceo.data import Federation
from fedceo.experiment.file import parse_experiment
from fedceo.models import build_model
from fedceo.scale.cluster import Workers, ray
from fedceo.scale.remote import on_workers
from fedceo.simulation.rounds import Simulation
from fedceo.tensors import truncated_tsvds
from fedceo.training.engine import make_trainer

CLIENTS, RECORDS, COHORT, BATCH = 20, 500, 10, 64
LAYER, LAYER_COHORT = (1600, 512), 64
CONTENDERS = {"one process": None, "1 worker": 1, "2 workers": 2}


def make_data() -> Federation:
    rng = torch.Generator().manual_seed(0)
    total = CLIENTS * RECORDS
    x = torch.randint(256, (total, 3, 32, 32), generator=rng, dtype=torch.uint8)
    y = torch.randint(10, (total,), generator=rng)
    none = torch.empty(0, dtype=torch.int64)
    train = list(torch.arange(total).view(CLIENTS, RECORDS))
    half = (0.5, 0.5, 0.5)
    return Federation("CIFAR-10-shaped", x, y, train, none, [none] * CLIENTS, x[:100], y[:100], 10, half, half)


def make_simulation(engine: str, data: Federation) -> Simulation:
    experiment = parse_experiment(
        {
            "data": {"name": "cifar10-shaped", "clients": CLIENTS},
            "cohort": {"size": COHORT},
            "train": {"rounds": 10**6, "local_epochs": 1, "batch_size": BATCH, "engine": engine, "device": "cpu"},
            "privacy": {"mechanism": "none"},
            "method": {"name": "fedavg"},
            "evaluation": {"every": 10**6},
        }
    )
    return Simulation(experiment, data, build_model("lenet5", (3, 32, 32), 10, 0), "lenet5", 0.0)


def race(engine: str, rounds: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)  # one process has one core, as a worker has
    data = make_data()
    simulations = {name: make_simulation(engine, data) for name in CONTENDERS}
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    ways: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    pids: dict[str, list[int]] = {name: [] for name in CONTENDERS}
    with ExitStack() as stack:
        for name, count in CONTENDERS.items():
            place = simulations[name].context
            if count is None:
                simulations[name].trainer = make_trainer(place, engine)
            else:
                remote = stack.enter_context(on_workers(Workers(count), place, engine))
                simulations[name].trainer = remote.trainer
                asked = [worker.__ray_call__.remote(lambda _: os.getpid()) for worker in remote.pool._alive]
                pids[name] = ray.get(asked)
        for turn in range(rounds + 1):
            for name, simulation in simulations.items():
                begin, mine, theirs = time.perf_counter(), time.process_time(), [processor_time(p) for p in pids[name]]
                simulation.step()
                if turn == 0:  # waits for workers that are still starting
                    continue
                times[name].append(time.perf_counter() - begin)
                worked = [processor_time(pid) - before for pid, before in zip(pids[name], theirs, strict=True)]
                ways[name].append(time.process_time() - mine + max(worked, default=0.0))
    one, *others = (simulation.state.weights for simulation in simulations.values())
    difference = max(float((one[name] - other[name]).abs().max()) for other in others for name in one)
    seconds = {name: statistics.median(each) for name, each in times.items()}
    way = {name: statistics.mean(each) for name, each in ways.items()}
    return [
        {
            "engine": engine,
            "contender": name,
            "round_s": seconds[name],
            "against_one_worker": seconds["1 worker"] / seconds[name],
            "longest_way_s": way[name],
            "way_against_one_worker": way["1 worker"] / way[name],
            "weights_differ_by": difference,
        }
        for name in CONTENDERS
    ]


def processor_time(pid: int) -> float:
    """Seconds that a process has worked."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def smoothing(turns: int) -> dict[str, Any]:
    simulation = make_simulation("batched", make_data())
    w = torch.randn(*LAYER, LAYER_COHORT, generator=torch.Generator().manual_seed(0))
    threshold = 0.8 * float(torch.linalg.svdvals(torch.fft.fft(w, dim=2)[:, :, 1])[0])
    times: dict[str, list[float]] = {"here": [], "spread": []}
    with on_workers(Workers(2), simulation.context, "batched") as remote:
        for turn in range(turns + 1):
            for name, smooth in (("here", truncated_tsvds), ("spread", remote.smooth)):
                begin = time.perf_counter()
                [found] = smooth([w], [threshold])
                if turn > 0:
                    times[name].append(time.perf_counter() - begin)
                if name == "here":
                    before = found
        difference = float((found - before).norm() / w.norm())
    seconds = {name: statistics.median(each) for name, each in times.items()}
    return {
        "layer": LAYER,
        "cohort": LAYER_COHORT,
        "one_core_s": seconds["here"],
        "two_workers_s": seconds["spread"],
        "ratio": seconds["here"] / seconds["spread"],
        "differs_by": difference,
    }


def busy() -> tuple[float, float]:
    """Seconds of cores at work and in all, on this machine since it started."""
    numbers = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = numbers[3] + numbers[4]
    return (sum(numbers) - idle) / os.sysconf("SC_CLK_TCK"), sum(numbers) / os.sysconf("SC_CLK_TCK")


def load_now(seconds: float = 5.0) -> float:
    """Cores that others keep busy while this process sleeps."""
    first = busy()
    time.sleep(seconds)
    return (busy()[0] - first[0]) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="two rounds, no t-SVD: to see that everything runs")
    parser.add_argument("--out", type=Path, default=RESULTS / "ray-workers.json")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    others = load_now()
    print(f"{cores} cores, of which others keep {others:.2f} busy before the race")
    print(
        f"{'engine':<10}{'contender':<14}{'s a round':>10}{'against one worker':>20}{'longest way, s':>16}"
        f"{'against one worker':>20}{'weights differ by':>20}"
    )
    rows = []
    ray.init(
        "local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        object_store_memory=2**30,
    )  # fmt: skip
    try:
        for engine in ("loop", "batched"):
            for row in race(engine, 2 if options.quick else options.rounds):
                rows.append(row)
                print(
                    f"{engine:<10}{row['contender']:<14}{row['round_s']:>10.3f}{row['against_one_worker']:>19.2f}x"
                    f"{row['longest_way_s']:>16.3f}{row['way_against_one_worker']:>19.2f}x"
                    f"{row['weights_differ_by']:>20.1e}",
                    flush=True,
                )
        spread = None if options.quick else smoothing(5)
        if spread:
            print(f"t-SVD of {LAYER}, K = {LAYER_COHORT}: {spread['one_core_s']:.2f} s on one core, "
                  f"{spread['two_workers_s']:.2f} s on two workers, {spread['ratio']:.2f}x")  # fmt: skip
    finally:
        ray.shutdown()
    after = load_now()
    print(f"others kept {after:.2f} cores busy after the race")
    about = {"ray": ray.__version__, "machine_cores": cores, "others_before": others, "others_after": after}
    write(about | {"rows": rows, "smoothing": spread}, options.out)


if __name__ == "__main__":
    main()

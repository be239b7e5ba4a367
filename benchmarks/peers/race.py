"""Prepares the work, starts the contenders one after another, collects times and compares the weights they end with."""

import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedceo.training.draws import DeviceDraws
from fedceo.training.schedule import Schedule
from peers.envs import interpreter
from peers.work import Setting, build, save_setting

BENCHMARKS = Path(__file__).resolve().parent.parent
TOLERANCE = 3e-2
"""How far two contenders' weights may be apart, in units of how far training moved them. Rounding alone makes a
hundredth now and then, where it turns a ReLU or a pooling; another order of batches makes some tenths."""

CNN = Setting("pfl's CNN", "pfl-cnn", clients=1000, cohort=50, records=50, batch=10, rate=0.1, rounds=4)
RECORD = Setting(
    "LeNet-5, record", "lenet5", clients=20, cohort=4, records=256, batch=64, rate=0.1, rounds=3, clip=1.0, noise=1.0
)


@dataclass(frozen=True)
class Contender:
    """Who runs, in which environment, on how many processes of how many threads.

    Attributes:
        launcher: what Python is told before the module, if that is not started plainly.
        extra: arguments after the work's folder and the result's place.
    """

    label: str
    module: str
    env: str = "own"
    processes: int = 1
    threads: int = 1
    launcher: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    def command(self, folder: Path, out: Path) -> list[str]:
        return [interpreter(self.env), *self.launcher, "-m", self.module, str(folder), str(out), *self.extra]


def contenders(setting: Setting, cores: int) -> list[Contender]:
    """Ours first; each peer on all cores in the way that suits it, and pfl also on one."""
    ours = Contender("fedceo", "peers.with_fedceo", threads=cores)
    if setting.clip is not None:
        return [ours, Contender("torch loop, Opacus", "peers.with_opacus", threads=cores)]
    loop = Contender("torch loop, DataLoader", "peers.with_torch", threads=cores)
    pfl = Contender("pfl 0.6", "peers.with_pfl", "pfl")
    flower = Contender("Flower 1.41 simulation", "peers.with_flower", "flower", processes=cores, extra=(str(cores),))
    even = max(p for p in range(1, cores + 1) if setting.cohort % p == 0)  # pfl's workers must get equally many
    if even == 1:
        return [ours, loop, pfl, flower]
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={even}")
    return [ours, loop, pfl, replace(pfl, processes=even, launcher=torchrun), flower]


def prepare(setting: Setting, folder: Path, seed: int = 0) -> None:
    """Write the work: random records, and the cohorts and batches that our Schedule draws from the seed."""
    save_setting(setting, folder)
    rng = np.random.default_rng(seed)
    size = (setting.clients, setting.records)
    np.save(folder / "x.npy", rng.standard_normal((*size, *setting.shape), dtype=np.float32))
    np.save(folder / "y.npy", rng.integers(10, size=size))
    np.savez(folder / "start.npz", **{name: w.numpy() for name, w in build(setting.model).state_dict().items()})
    schedule = Schedule(seed)
    name = "batches" if setting.clip is None else "poisson_batches"

    def draw(t: int, clients: list[int]) -> list[Tensor]:
        """Each client's batches in a round."""
        if setting.device == "cpu":
            one = getattr(schedule, name)
            return [one(t, client, setting.records, setting.epochs, setting.batch) for client in clients]
        every = getattr(DeviceDraws(schedule, torch.device(setting.device)), name)
        sizes = [setting.records] * len(clients), [setting.batch] * len(clients)
        return [drawn.cpu() for drawn in every(t, clients, sizes[0], setting.epochs, sizes[1])]

    cohorts = [schedule.cohort(t, setting.clients, setting.cohort, "fixed") for t in range(1, setting.rounds + 1)]
    np.save(folder / "cohorts.npy", np.array(cohorts))
    each = [draw(t, clients) for t, clients in enumerate(cohorts, start=1)]
    steps, width = (max(b.shape[axis] for row in each for b in row) for axis in (0, 1))
    batches = torch.full((len(each), setting.cohort, steps, width), -1)
    for turn, row in enumerate(each):
        for k, drawn in enumerate(row):
            batches[turn, k, :, : drawn.shape[1]] = drawn
    np.save(folder / "batches.npy", batches.numpy())


def start(contender: Contender, folder: Path, limit: float = 600.0) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Run a contender; when its rounds ended, counted from its start, the system's share, and its final weights.

    Args:
        limit: seconds after which the contender and the processes that it has started are killed.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        home = Path(name)
        out, log = home / "result.json", home / "log.txt"
        paths = [str(BENCHMARKS), str(BENCHMARKS.parent / "src"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "OMP_NUM_THREADS": str(contender.threads),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "FLWR_HOME": name,
        }
        command = contender.command(folder, out)
        with log.open("w") as said:  # not a pipe, which processes that outlive the contender would hold open
            begin, before = time.time(), os.times()
            process = subprocess.Popen(
                command, env=environment, cwd=home, stdout=said, stderr=said, start_new_session=True
            )
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"{contender.label} took longer than {limit:.0f} s:\n{ending(log)}") from None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode or not out.exists():
            raise RuntimeError(f"{contender.label} failed:\n{ending(log)}")
        user, system = (getattr(os.times(), key) - getattr(before, key) for key in ("children_user", "children_system"))
        about = json.loads(out.read_text()) | {"system": system / (user + system)}
        with np.load(out.with_suffix(".npz")) as weights:
            return about | {"ends": [end - begin for end in about["ends"]]}, dict(weights)


def ending(log: Path) -> str:
    """The end of what a contender said."""
    return log.read_text(errors="replace")[-4000:].strip()


def distance(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """L2, over all tensors; both must have the same ones."""
    assert a.keys() == b.keys(), f"other weights: {sorted(a)} and {sorted(b)}"
    return float(np.sqrt(sum(np.square(a[name] - b[name], dtype=np.float64).sum() for name in a)))


def race(setting: Setting, cores: int, runs: int) -> list[dict[str, Any]]:
    """One row a contender: start-up in seconds, steady milliseconds per client and round, and how far its weights are
    from ours. Medians over runs. Start-up is the time from starting the process to the end of its first round, less a
    steady round."""
    print(f"\n{setting.name}: {setting.cohort} of {setting.clients} clients, {setting.records} records each")
    field = contenders(setting, cores)
    results: list[list[dict[str, Any]]] = [[] for _ in field]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(setting, folder)
        apart = differences(setting, field, folder)
        for _ in range(runs):  # by turns, so that a slow minute of the machine falls on all
            for each, mine in zip(field, results, strict=True):
                mine.append(start(each, folder)[0])
                print(f"  {each.label}, {each.processes}x{each.threads}: {mine[-1]['ends'][-1]:.1f} s", flush=True)
    return [summarise(setting, *rest) for rest in zip(field, results, apart, strict=True)]


def differences(setting: Setting, field: list[Contender], folder: Path) -> list[float]:
    """How far everybody's weights are from the first one's after two rounds without noise, in units of how far those
    rounds moved them."""
    save_setting(replace(setting, rounds=2, noise=0.0), folder)
    weights = [start(each, folder)[1] for each in field]
    save_setting(setting, folder)
    with np.load(folder / "start.npz") as arrays:
        moved = distance(weights[0], dict(arrays))
    apart = [distance(weights[0], each) / moved for each in weights]
    for each, difference in zip(field, apart, strict=True):
        assert difference < TOLERANCE, f"{each.label} did other work: its weights differ by {difference:.1e}"
    return apart


def summarise(
    setting: Setting, contender: Contender, results: list[dict[str, Any]], difference: float, warm: int = 1
) -> dict[str, Any]:
    """A contender's row; warm: the rounds that belong to its start-up."""
    rounds = [statistics.median(np.diff(result["ends"][warm - 1 :]).tolist()) for result in results]
    startup = [result["ends"][warm - 1] - warm * steady for result, steady in zip(results, rounds, strict=True)]
    each = [1e3 * steady / setting.cohort for steady in rounds]
    return {
        "setting": setting.name,
        "contender": contender.label,
        "processes": contender.processes,
        "threads": contender.threads,
        "startup_s": statistics.median(startup),
        "client_ms": statistics.median(each),
        "system": statistics.median(result["system"] for result in results),
        "difference": difference,
        "versions": results[0]["versions"],
        "runs": {"startup_s": startup, "client_ms": each},
    }

"""Rounds of training on a GPU: ours against pfl, Flower's simulation, a plain torch loop, and that loop with Opacus.

    python benchmarks/gpu_race.py [--float32] [--seconds 400] [--out FILE.json]
    python benchmarks/gpu_race.py --device cpu --quick      # to see that everything runs

The peers must be importable (peers/vendor.py gathers them for a machine without a network); the row of one that fails
says why, and the others go on. Every contender is a process of its own, all on one GPU, with N = 100 clients:

CNN       the network of pfl's CIFAR-10 benchmark, 50 records a client, batches of 10, one local epoch, plain SGD
LeNet-5   384 records a client, batches of 64; K = 10 with the paper's 30 local epochs, K = 100 with 3: as many steps
record    the same with DP-SGD inside local training, for those who can: Opacus

For everybody alike, records lie in the GPU's memory before a round is timed, and products are in TF32, or with
--float32 they are not; the peers have the places of their batches there too, while ours are drawn in every round.
First all contenders train two rounds of one epoch in float32 without noise, side by side and untimed, and must end with
the same weights; whoever does not is not timed. Then they take turns: medians over rounds. Start-up is the time from
starting the process to the end of its second round, less two steady ones; kernels that a contender has compiled for the
check are found again, as in any second run of a user.
"""

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from peers.race import TOLERANCE, Contender, distance, prepare, start, summarise
from peers.work import Setting
from report import RESULTS, write

CNN = Setting("CNN, K = 10", "cnn", clients=100, cohort=10, records=50, batch=10, rate=0.1, rounds=16)
LENET5 = Setting(
    "LeNet-5, K = 10", "lenet5", clients=100, cohort=10, records=384, batch=64, rate=0.01, rounds=4, epochs=30
)
RECORD = replace(LENET5, name="record, K = 10", clip=1.0, noise=1.0, rounds=4)
SETTINGS = [
    CNN,
    LENET5,
    replace(CNN, name="CNN, K = 100", cohort=100, rounds=6),
    replace(LENET5, name="LeNet-5, K = 100", cohort=100, epochs=3),
    RECORD,
    replace(RECORD, name="record, K = 100", cohort=100, epochs=3),
]
WARM = 2
"""Rounds that belong to start-up: steps are recorded in the first and memory settles in the second."""
SHARING, ACTORS = 5, 10
"""Processes of pfl, as many as its authors recommend at most, and actors of Flower that share the GPU."""
SLOW_ONES = 10
"""The largest cohort in which those race who are known not to be the quickest of the peers."""
LIMIT = 75.0
"""Seconds after which a contender is given up."""
CHECKING = 0.4
"""The part of the whole time that the check may take, so that one who hangs there leaves time for the race."""
AIM = 10.0
"""The times that the best peer should take of our time."""

CORES = os.cpu_count() or 1

Place = tuple[str, str]
"""A setting's name and a contender's label."""


def contenders(setting: Setting, quick: bool) -> list[Contender]:
    """Ours first."""
    ours = Contender("fedceo", "peers.with_fedceo", threads=CORES)
    if setting.clip is not None:
        return [ours, Contender("torch loop, Opacus", "peers.with_opacus", threads=CORES)]
    sharing, actors = (2, 2) if quick else (SHARING, ACTORS)
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={sharing}")
    quick_ones = [
        ours,
        Contender(f"pfl 0.6, {sharing} processes", "peers.with_pfl_sharing", processes=sharing, launcher=torchrun),
        Contender("torch loop", "peers.with_torch", threads=CORES),
    ]
    if setting.cohort > SLOW_ONES:
        return quick_ones
    return [
        *quick_ones,
        Contender("pfl 0.6", "peers.with_pfl", threads=CORES),
        Contender(f"Flower 1.41, {actors} actors", "peers.with_flower", processes=actors, extra=(str(actors),)),
    ]


def check(settings: list[Setting], quick: bool, deadline: float) -> dict[Place, float | str]:
    """How far everybody's weights are from ours after two rounds, in units of how far those moved them; or why nobody
    knows. Each contender goes through the settings by itself, as many contenders at once as the cores allow."""
    entries: dict[str, list[tuple[Setting, Contender]]] = {}
    for setting in settings:
        for each in contenders(setting, quick):
            entries.setdefault(each.label, []).append((setting, each))
    weights: dict[Place, dict[str, np.ndarray]] = {}
    found: dict[Place, float | str] = {}
    with ExitStack() as stack:
        folders = {s.name: Path(stack.enter_context(tempfile.TemporaryDirectory())) for s in settings}
        for setting in settings:
            little = replace(setting, clients=setting.cohort, rounds=2, epochs=1, noise=0.0, tf32=False)
            prepare(little, folders[setting.name])

        def go_through(mine: list[tuple[Setting, Contender]]) -> None:
            for setting, each in mine:
                place = setting.name, each.label
                try:
                    weights[place] = start(each, folders[setting.name], left(deadline))[1]
                except RuntimeError as error:
                    found[place] = str(error)
                    print(f"{setting.name}: {str(error)[-1500:]}\n", flush=True)

        with ThreadPoolExecutor(max(1, CORES // 2)) as pool:
            list(pool.map(go_through, entries.values()))
        for (name, label), theirs in weights.items():
            ours = weights.get((name, "fedceo"))
            if ours is None:
                found[name, label] = "there are no weights of fedceo to compare with"
                continue
            with np.load(folders[name] / "start.npz") as arrays:
                apart = distance(ours, theirs) / distance(ours, dict(arrays))
            found[name, label] = apart if apart < TOLERANCE else f"did other work: weights differ by {apart:.1e}"
    return found


def left(deadline: float) -> float:
    """Seconds that a contender may take from now."""
    remaining = deadline - time.monotonic()
    if remaining < 1.0:
        raise RuntimeError("not run: the time was up")
    return min(LIMIT, remaining)


def race(setting: Setting, quick: bool, checked: dict[Place, float | str], deadline: float) -> list[dict[str, Any]]:
    """A row for each contender, one after another."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(setting, folder)
        for each in contenders(setting, quick):
            apart = checked[setting.name, each.label]
            try:
                if isinstance(apart, str):
                    raise RuntimeError(apart)
                result, _ = start(each, folder, left(deadline))
                row = summarise(setting, each, [result], apart, WARM)
                row["rounds_ms"] = (1e3 * np.diff(result["ends"])).tolist()
            except RuntimeError as error:
                row = {
                    "setting": setting.name,
                    "contender": each.label,
                    "error": str(error).splitlines()[0].rstrip(":"),
                }
            rows.append(row)
            show(row, rows[0])
    return rows


def show(row: dict[str, Any], ours: dict[str, Any]) -> None:
    line = f"{row['setting']:<18}{row['contender']:<24}"
    if "error" in row:
        what, *said = row["error"].splitlines()
        causes = [each for each in said if "Error" in each]
        print(f"{line}  {what} {causes[-1][:200] if causes else ''}", flush=True)
        return
    times = ["", ""] if "error" in ours else [f"{row[key] / ours[key]:.2f}x" for key in ("client_ms", "startup_s")]
    line += f"{row['client_ms']:>12.3f}{times[0]:>9}{row['startup_s']:>12.1f}{times[1]:>9}{row['difference']:>10.0e}"
    print(line, flush=True)


def against_best(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each setting the quickest peer and how many times our time it takes."""
    best = []
    for name in dict.fromkeys(row["setting"] for row in rows):
        timed = [row for row in rows if row["setting"] == name and "error" not in row]
        if len(timed) > 1 and timed[0]["contender"] == "fedceo":
            peer = min(timed[1:], key=lambda row: row["client_ms"])
            ratio = peer["client_ms"] / timed[0]["client_ms"]
            best.append({"setting": name, "best_peer": peer["contender"], "ratio": ratio})
            print(f"{name:<18}{ratio:>6.1f}x the best peer, {peer['contender']} (aim {AIM:.0f}x)")
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--float32", action="store_true", help="without TF32")
    parser.add_argument("--quick", action="store_true", help="few clients, few steps: to see that everything runs")
    parser.add_argument("--seconds", type=float, default=400.0, help="after which no contender is started")
    parser.add_argument("--out", type=Path, default=RESULTS / "race-h200.json")
    options = parser.parse_args()

    begin = time.monotonic()
    deadline = begin + options.seconds
    settings = [replace(s, device=options.device, tf32=not options.float32) for s in SETTINGS]
    if options.quick:
        settings = [
            replace(s, clients=4, cohort=2, records=2 * s.batch, epochs=min(s.epochs, 2), rounds=WARM + 2)
            for s in settings[::4]
        ]
    checked = check(settings, options.quick, begin + CHECKING * options.seconds)
    print(f"checked after {time.monotonic() - begin:.0f} s\n")
    print(f"{'':<42}{'ms per':>12}{'':>9}{'start-up,':>12}{'':>9}{'weights':>10}")
    print(f"{'setting':<18}{'contender':<24}{'client':>12}{'vs ours':>9}{'s':>12}{'vs ours':>9}{'differ by':>10}")
    rows: list[dict[str, Any]] = []
    try:
        for setting in settings:
            rows += race(setting, options.quick, checked, deadline)
    finally:
        print()
        found = {"tf32": not options.float32, "seconds": time.monotonic() - begin, "rows": rows}
        write(found | {"against_best": against_best(rows)}, options.out, options.device)


if __name__ == "__main__":
    main()

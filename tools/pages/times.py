"""The section of docs/results.md on time: the paper's hours beside our seconds, and what all runs in results/ took."""

import json
import statistics
from collections.abc import Iterator, Mapping

from paper_tables import AUTHORS_PROGRAM, HOURS, SIGMAS
from runs_found import NAMES, ROOT, Found, load, markdown

HEAD = """## Time

300 rounds with evaluation every 5. Paper: one RTX 4090. Ours: alone on one {machine}
(`fedceo sweep experiments/paper/runtime.toml --fill results/paper/runtime.json --jobs 1`, with MNIST in EMNIST's place;
or `benchmarks/gpu_cifar10.py`), or, after <, the quickest run in `results/`, which shared the GPU with others
and was evaluated every 5 or 10. The authors' program: 300 times a round that was
timed once on the same kind of GPU.

"""
SPENT = """
What the runs in `results/` took. Seconds of a run are those that passed, while others were on the same GPU; runs of a
stack are trained together, so their sum is more than the GPU's own time. Trials are not in it.

"""
STANDS_IN = {"EMNIST, MLP": "mnist-mlp", "CIFAR-10, LeNet-5": "cifar10-lenet5"}
KINDS = ("", ".finalists", ".whole")


def section(cells: Mapping[str, Found]) -> str:
    return runtimes(cells) + spent()


def runtimes(cells: Mapping[str, Found]) -> str:
    """The paper's hours and our seconds, from runs that had the machine alone where there are such."""
    measured = json.loads((ROOT / "benchmarks" / "results" / "cifar10-h200.json").read_text())
    timed = {row["run"].partition(",")[0]: row["seconds"] for row in measured["rows"] if row["seconds"]}

    def seconds(setting: str, method: str) -> str:
        alone = cells.get(f"paper/runtime/{STANDS_IN[setting]}/{method}")
        if alone is not None and alone.done:
            return f"{statistics.median(run['result']['seconds'] for run in alone.done):.1f}"
        if not setting.startswith("CIFAR"):
            return "not run"
        found = timed.get(method.replace("udp-fedavg", "UDP-FedAvg").replace("fedceo", "FedCEO"))
        names = (f"paper/table1/cifar10-lenet5/sigma-{sigma}/{method}" for sigma in SIGMAS)
        shared = [run["result"]["seconds"] for name in names if name in cells for run in cells[name].done]
        return f"{found:.1f}" if found else f"< {min(shared):.0f}"

    def rows() -> Iterator[tuple[str, ...]]:
        for setting, hours in HOURS.items():
            for method, paper in hours.items():
                theirs = AUTHORS_PROGRAM.get((setting, method), "not run")
                yield setting, NAMES[method], paper, theirs, seconds(setting, method)

    head = ("", "method", "paper, hours", "authors' program, hours", "ours, seconds")
    return HEAD.format(machine=measured["machine"]) + markdown(head, rows())


def spent() -> str:
    """The seconds of all runs by the folder of their table, and how long one takes."""
    by_table: dict[str, list[float]] = {}
    count: dict[str, int] = {}
    for kind in KINDS:
        for name, found in load(kind).items():
            table = "/".join(name.split("/")[:2])
            count[table] = count.get(table, 0) + 1
            by_table.setdefault(table, []).extend(run["result"]["seconds"] for run in found.done)
    rows = [
        (table, str(count[table]), str(len(each)), f"{statistics.median(each):.0f}", f"{sum(each):,.0f}")
        for table, each in sorted(by_table.items())
    ]
    everything = [second for each in by_table.values() for second in each]
    rows.append(("all", str(sum(count.values())), str(len(everything)), "", f"{sum(everything):,.0f}"))
    return SPENT + markdown(("results/", "cells", "runs", "seconds of a run, median", "of all"), rows)

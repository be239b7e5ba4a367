"""The tables of docs/scale.md, from what cost_model.py and ray_workers.py have written.

python tools/pages/scale_page.py
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "scale.md"
TIMES = (("years", 365.25 * 86400), ("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6))
LENET5 = (
    "LeNet-5 is counted on records of 1 x 28 x 28, as MNIST has them; on the 3 x 32 x 32 of CIFAR-10 it has 1,141,194\n"
    "parameters, which is what `fedceo list` says."
)


def costs(result: dict[str, Any]) -> str:
    """The errors of the cost model's formulas, and their predictions."""
    lines = [
        f"Measured on {result['date']} with torch {result['torch']} on one core of: {result['machine']}.",
        "",
        "| formula | points | prediction / measurement |",
        "|---|---|---|",
    ]
    for kind, errors in result["relative_errors"].items():
        lines.append(f"| {kind} | {len(errors)} | {1 + min(errors):.2f} to {1 + max(errors):.2f} |")
    lines += ["", "| check, larger than what was fitted | predicted | measured | ratio |", "|---|---|---|---|"]
    for row in result["checks"]:
        predicted, measured = row["predicted_s"], row["measured_s"]
        lines.append(f"| {row['what']} | {seconds(predicted)} | {seconds(measured)} | {predicted / measured:.2f} |")
    latency, per_byte = result["factors"]["transfer"]
    heads = ("model, parameters", "clients a round", "training", "distributed noise", "t-SVD of the stack",
             "t-SVD of the mean", "uploads", "their way at 10 Gbit/s")  # fmt: skip
    lines += [
        "",
        f"A result takes {1e3 * latency:.1f} ms and comes at {1e-9 / per_byte:.1f} GB/s from a worker on one machine.",
        "",
        f"| {' | '.join(heads)} |",
        "|" + "---|" * len(heads),
    ]
    for row in result["predictions"]:
        times = [seconds(row[f"{name}_core_s"]) for name in ("training", "noise", "tsvd", "tsvd_of_mean")]
        cells = [
            f"{row['model']}, {row['parameters']:,}", f"{row['cohort']:,}", *times,
            in_units(row["upload_bytes"], SIZES), seconds(row["network_s"]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", LENET5]
    return "\n".join(lines) + "\n"


def workers(result: dict[str, Any]) -> str:
    """The gain of a second worker."""
    lines = [
        f"Measured on {result['date']} with Ray {result['ray']} on {result['machine_cores']} cores of: "
        f"{result['machine']}, of which others kept {result['others_before']:.1f} busy before and "
        f"{result['others_after']:.1f} after.",
        "",
        "| engine | contender | seconds a round | against one worker | longest way, core-seconds | "
        "against one worker | weights differ by |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        lines.append(
            f"| {row['engine']} | {row['contender']} | {row['round_s']:.3f} | {row['against_one_worker']:.2f}x | "
            f"{row['longest_way_s']:.3f} | {row['way_against_one_worker']:.2f}x | {row['weights_differ_by']:.0e} |"
        )
    spread = result["smoothing"]
    d, h = spread["layer"]
    lines += [
        "",
        f"The truncated t-SVD of {d} x {h}, K = {spread['cohort']}: {spread['one_core_s']:.1f} s on one core, "
        f"{spread['two_workers_s']:.1f} s spread over two workers, {spread['ratio']:.2f}x; the results differ by "
        f"{spread['differs_by']:.0e} of the input's norm.",
    ]
    return "\n".join(lines) + "\n"


def seconds(value: float) -> str:
    return in_units(value, TIMES)


def in_units(value: float, units: tuple[tuple[str, float], ...]) -> str:
    """The value in the largest unit of which it has at least one."""
    name, unit = next(((name, unit) for name, unit in units if value >= unit), units[-1])
    return f"{value / unit:,.0f} {name}" if value / unit >= 100 else f"{value / unit:.2g} {name}"


PARTS: dict[str, Callable[[dict[str, Any]], str]] = {"cost-model": costs, "ray-workers": workers}


def page(text: str) -> str:
    """The page with every part between its marks written anew."""
    for name, write in PARTS.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
        before, _, rest = text.partition(begin)
        result = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
        text = before + begin + write(result) + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))

"""docs/speed.md, from what the benchmarks on a GPU have written.

python tools/pages/speed_page.py
"""

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "speed.md"
RESULTS = ROOT / "benchmarks" / "results"

HEAD = """# Speed

How long a round takes on one NVIDIA H200, and what limits it. Random records in the shapes of the paper's settings:
N = 100 clients, K = 10 a round, E = 30 local epochs, B = 64, so that a round of LeNet-5 is 210 steps of ten clients.
The scripts are in [benchmarks/](../benchmarks/README.md); this page is written by `tools/pages/speed_page.py`.
"""


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def measured(result: dict[str, Any], script: str) -> str:
    return f"Measured on {result['date']} with torch {result['torch']} by `benchmarks/{script}`."


FASTER = 0.97
"""The part of a round's time below which another measurement is of other kernels."""


def rounds() -> list[str]:
    result = read("rounds-h200")
    lines = ["## A round", "", measured(result, "gpu_rounds.py") + " Seconds, without evaluation; medians.", ""]
    lines += ["| | TF32 | float32 |", "|---|---|---|"]
    lines += [f"| {row['row']} | {row['tf32']:.3f} | {row['float32']:.3f} |" for row in result["rounds"]]
    spent = result["end_to_end"]["seconds"]
    first = spent["UDP-FedAvg"]
    others = "; ".join(f"{name} {total / first - 1:+.1%}" for name, total in spent.items() if name != "UDP-FedAvg")
    count, earlier = result["end_to_end"]["rounds"], result["end_to_end"].get("earlier")
    whose = "With the kernels of an earlier version, " if earlier else ""
    end = f"{whose}{count} rounds of LeNet-5, distributed, evaluated every 5: UDP-FedAvg {first:.1f} s; {others}."
    return [*lines, "", *_since(result), end]


def _since(result: dict[str, Any]) -> list[str]:
    """A remark where the roofline below was measured with faster kernels than these rounds."""
    before = {row["row"]: row["tf32"] for row in result["rounds"]}
    now = {f"LeNet-5, {regime}": read("roofline-h200")[regime]["round"] for regime in ("record", "distributed")}
    if not any(seconds < FASTER * before[name] for name, seconds in now.items()):
        return []
    told = " and ".join(f"{seconds:.3f} ({name})" for name, seconds in now.items())
    return [f"Kernels have changed since: with those of the table at the end of this page a round takes {told}.", ""]


def tf32() -> list[str]:
    result = read("end-to-end-h200")
    gaps, count = result["tf32_less_float32"], result["rows"][0]["rounds"]
    return [
        "## What TF32 costs",
        "",
        measured(result, "gpu_end_to_end.py")
        + f" LeNet-5 on CIFAR-10, record-level DP-SGD at sigma = 2, three seeds, {count} rounds:",
        f"the accuracy with TF32 is {statistics.mean(gaps):+.2f} points above that without it, with a standard",
        f"deviation of {statistics.stdev(gaps):.2f} over seeds. Longer runs have not been compared with these kernels.",
    ]


def stacks() -> list[str]:
    result = read("stack-h200")
    sizes = list(result["rounds"][0]["seconds"])
    lines = ["## Several runs as one program", ""]
    lines += [measured(result, "gpu_stack.py") + " `fedceo sweep --stack S`; seconds a round and run, TF32.", ""]
    lines += ["| | " + " | ".join(f"S = {size}" for size in sizes) + " |", "|---|" + "---|" * len(sizes)]
    for row in result["rounds"]:
        lines.append(f"| {row['row']} | " + " | ".join(f"{row['seconds'][size]:.4f}" for size in sizes) + " |")
    return lines


def roofline() -> list[str]:
    result = read("roofline-h200")
    lines = ["## What limits a step of LeNet-5", ""]
    lines.append(
        measured(result, "gpu_roofline.py")
        + f" A copy moves {result['bytes_a_second'] / 1e12:.2f} TB/s, a float16 product runs at\n"
        + f"{result['operations_a_second'] / 1e12:.0f} TFLOP/s. The limit of a kernel is the longer of its bytes over "
        + "the first and its operations over the second."
    )
    now = {row["row"]: row["tf32"] for row in read("rounds-h200")["rounds"]}
    if any(now[f"LeNet-5, {regime}"] < FASTER * result[regime]["round"] for regime in ("record", "distributed")):
        lines += [
            "",
            "These are the kernels of an earlier version; those of the first table have not been taken apart.",
        ]
    for regime in ("record", "distributed"):
        part = result[regime]
        lines += ["", f"{regime.capitalize()}, {part['round']:.3f} s a round:", ""]
        lines += ["| kernel | us a step | MB | GFLOP | limit, us | share |", "|---|---|---|---|---|---|"]
        for row in part["kernels"]:
            numbers = " |  |  |  |"
            if row["limit"]:
                numbers = (
                    f" {row['bytes'] / 1e6:.1f} | {row['operations'] / 1e9:.1f} | {row['limit'] * 1e6:.1f} | "
                    f"{row['limit'] / row['seconds']:.0%} |"
                )
            lines.append(f"| {row['kernel']} | {row['seconds'] * 1e6:.1f} |{numbers}")
    return lines


def race() -> list[str]:
    result = read("race-h200")
    lines = ["## Against others", ""]
    lines.append(
        measured(result, "gpu_race.py")
        + " The same rounds, after which weights differ from ours by less than a\n"
        + "hundredth of the way that they moved; milliseconds a client, without start-up."
    )
    lines += ["", "| setting | contender | ms a client | times ours |", "|---|---|---|---|"]
    ours: dict[str, float] = {}
    missing: dict[str, list[str]] = {}
    for row in result["rows"]:
        if "client_ms" not in row:
            missing.setdefault(row["setting"], []).append(row["contender"])
            continue
        ours.setdefault(row["setting"], row["client_ms"])
        ratio = row["client_ms"] / ours[row["setting"]]
        lines.append(f"| {row['setting']} | {row['contender']} | {row['client_ms']:.2f} | {ratio:.1f} |")
    if missing:
        lines += ["", "Not measured, since the time on the machine was up:", ""]
        lines += [f"- {setting}: {', '.join(contenders)}" for setting, contenders in missing.items()]
    return lines


def race_on_a_cpu() -> list[str]:
    result = read("rounds-cpu")
    lines = ["## Against others, on two cores", ""]
    lines.append(
        measured(result, "rounds.py")
        + " *peak*: the operations of a contender's products over its\n"
        + "time, against one large product on the same cores."
    )
    lines += ["", "| setting | contender | processes x threads | ms a client | times ours | peak |"]
    lines += ["|---|---|---|---|---|---|"]
    ours: dict[str, float] = {}
    for row in result["rows"]:
        ours.setdefault(row["setting"], row["client_ms"])
        lines.append(
            f"| {row['setting']} | {row['contender']} | {row['processes']} x {row['threads']} | "
            f"{row['client_ms']:.2f} | "
            f"{row['client_ms'] / ours[row['setting']]:.2f} | {row['peak']:.0%} |"
        )
    return lines


def limits_on_a_cpu() -> list[str]:
    result, raced = read("roofline-cpu"), read("rounds-cpu")
    lines = ["## What limits a round on two cores", ""]
    lines.append(
        measured(result, "roofline.py")
        + " Milliseconds of one core for a client's\n"
        + "round. *alone*: each part in the fastest kernel that torch has for it, operands in the cache; *floor*: "
        + "operations\n"
        + f"at {result['most_gflops']:.0f} GFLOP/s, the most that any product reached (a large one of matrices: "
        + f"{result['product_gflops']:.0f}), or bytes at {result['copy_gb_s']:.0f} GB/s, a copy inside the cache."
    )
    for name, setting in result["settings"].items():
        lines += ["", f"| {name} | MFLOP | MB | alone | floor |", "|---|---|---|---|---|"]
        for row in setting["parts"]:
            count = row["count"]
            lines.append(
                f"| {row['part']} | {count * row['operations'] / 1e6:.1f} | {count * row['bytes'] / 1e6:.1f} | "
                f"{count * row['alone_us'] / 1e3:.2f} | {count * row['floor_us'] / 1e3:.2f} |"
            )
        lines += [f"| **sum** | | | **{setting['alone_ms']:.2f}** | **{setting['floor_ms']:.2f}** |", ""]
        lines.append(_most(setting, [row for row in raced["rows"] if row["setting"] == name], raced["cores"]))
    return lines


def _most(setting: dict[str, Any], rows: list[dict[str, Any]], cores: int) -> str:
    """How far ahead of the others anybody can be who has the same cores."""
    spent = {row["contender"]: row["client_ms"] * cores for row in rows if row["processes"] * row["threads"] == cores}
    ours, alone = spent.pop("fedceo"), setting["alone_ms"]
    factors = ", ".join(f"{time / alone:.1f} ({name})" for name, time in spent.items() if "fedceo" not in name)
    return (
        f"So nobody who calls these kernels is ahead of the others by more than {factors};\n"
        f"fedceo takes {ours / alone:.2f} times the sum of its parts alone."
    )


def features() -> list[str]:
    lines = ["## Scattering features", ""]
    for name, where in (("scattering-h200", "on the GPU"), ("scattering-cpu", "on two cores of a CPU")):
        result = read(name)
        times = "; ".join(f"{row['features']} in {row['seconds']:.1f} s" for row in result["rows"])
        lines.append(f"- {measured(result, 'scattering.py')} {result['images']:,} images of 3x32x32 {where}: {times}.")
    return lines


def page() -> str:
    parts = (rounds(), tf32(), stacks(), race(), race_on_a_cpu(), limits_on_a_cpu(), features(), roofline())
    return HEAD + "\n" + "\n\n".join("\n".join(part) for part in parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())

"""Writes docs/theory.md and its figure from results/theory.json, which measure.py wrote.

python tools/theory/page.py
"""

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bound import section
from figure import draw
from measure import METHODS, RATE, RESULT, SWEEPS, Cell, cells_of, floor_of
from problem import OUTPUTS, make_problem
from slopes import Fit, above_floor, fit
from words import CLAIMS, HEAD, NAMES, TAIL, TITLES

DOCS = Path(__file__).resolve().parents[2] / "docs"
VARIED = {"d": "d", "N, K fixed": "N", "K, N fixed": "K", "N = K": "N", "sigma": "sigma"}
EVERY = (*METHODS, "jain")


@cache
def result() -> dict[str, Any]:
    return json.loads(RESULT.read_text())


@cache
def _by_cell() -> dict[Cell, list[dict[str, Any]]]:
    found: dict[Cell, list[dict[str, Any]]] = {}
    for run in result()["runs"]:
        found.setdefault(Cell(run["method"], run["d"], run["N"], run["K"], run["sigma"]), []).append(run)
    return found


def measured(sweep: str, method: str) -> tuple[dict[float, list[float]], dict[float, float], dict[float, float]]:
    """By the varied number: epsilon_u of every seed, epsilon_p, and what is left of epsilon_u without noise."""
    losses, privacy, floors = {}, {}, {}
    for cell in cells_of(sweep, method):
        x = asdict(cell)[VARIED[sweep]]
        runs = _by_cell()[cell]
        losses[x] = [run["epsilon_u"] for run in runs]
        privacy[x] = runs[0]["epsilon_p"]
        (bare,) = _by_cell()[floor_of(cell)]
        floors[x] = bare["epsilon_u"]
    return losses, privacy, floors


def fits(sweep: str, method: str) -> tuple[Fit | None, Fit | None]:
    """The exponents of epsilon_u and of epsilon_u epsilon_p."""
    losses, privacy, floors = measured(sweep, method)
    counted = above_floor(losses, floors)
    return fit(counted), fit({x: [privacy[x] * loss for loss in y] for x, y in counted.items()})


def beside(found: Fit | None, claim: float | None) -> str:
    """A slope and how it stands to the claim; the claims are upper bounds, which a larger exponent breaks."""
    if found is None:
        return "-"
    if claim is None:
        return found.text
    verdict = "meets" if found.meets(claim) else "**above**" if found.low > claim else "below"
    return f"{found.text}, {verdict}"


def slope_table(sweep: str) -> str:
    head = ("method", "epsilon_u", "claim", "epsilon_u epsilon_p", "claim", "points")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for method in EVERY:
        if not cells_of(sweep, method):
            continue
        utility, product = fits(sweep, method)
        claims = CLAIMS[sweep][method.partition("-")[0]]
        points = ", ".join(f"{x:g}" for x in utility.points) if utility else "too few above the floor"
        lines.append(
            f"| {NAMES[method]} | {beside(utility, claims[0])} | {exponent(claims[0])} | "
            f"{beside(product, claims[1])} | {exponent(claims[1])} | {points} |"
        )
    return "\n".join(lines) + "\n"


def exponent(claim: float | None) -> str:
    return "none" if claim is None else f"{claim:g}"


def number_table(sweep: str) -> str:
    """Mean epsilon_u over seeds, its floor in brackets, epsilon_p at the end."""
    values = sorted({asdict(cell)[VARIED[sweep]] for method in EVERY for cell in cells_of(sweep, method)})
    head = ("method", *(f"{VARIED[sweep]} = {x:g}" for x in values), "epsilon_p")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for method in EVERY:
        losses, privacy, floors = measured(sweep, method)
        if losses:
            shown = [f"{np.mean(losses[x]):.2g} ({floors[x]:.1g})" if x in losses else "-" for x in values]
            spent = sorted({f"{epsilon:.3g}" for epsilon in privacy.values()}, key=float)
            lines.append(f"| {NAMES[method]} | {' | '.join(shown)} | {' to '.join(spent[:: max(len(spent) - 1, 1)])} |")
    return "\n".join(lines) + "\n"


def numbers() -> dict[str, str]:
    """The numbers that the prose quotes."""

    def slope(sweep: str, method: str, which: int = 0) -> str:
        found = fits(sweep, method)[which]
        return "no slope" if found is None else found.text

    top = {method: np.mean(measured("d", method)[0][1024]) for method in METHODS}
    base = {method: measured("d", method) for method in METHODS}
    gap = max(
        abs(float(np.mean(y) / np.mean(measured(sweep, f"fedceo-{kind}-mean")[0][x])) - 1)
        for sweep in SWEEPS
        for kind in ("noise", "scheduled")
        for x, y in measured(sweep, f"fedceo-{kind}-own")[0].items()
    )
    theorem = max(
        abs(float(np.mean(measured(sweep, "fedceo-theorem")[0][x]) / np.mean(y)) - 1)
        for sweep in SWEEPS
        for x, y in measured(sweep, "udp-fedavg")[0].items()
    )
    schedule = {
        (sweep, x): float(np.mean(measured(sweep, "fedceo-scheduled-mean")[0][x]) / np.mean(y))
        for sweep in SWEEPS
        for x, y in measured(sweep, "udp-fedavg")[0].items()
    }
    at_sigma_2 = ("N, K fixed", "K, N fixed")
    noisy = [r for (sweep, x), r in schedule.items() if sweep in at_sigma_2 or (sweep, x) == ("sigma", 2)]
    noisy += [r for (sweep, x), r in schedule.items() if sweep == "d" and x >= 128]
    about = result()["about"]
    return section()[1] | {
        "schedule_good": f"{min(noisy):.2f} to {max(noisy):.2f}",
        "schedule_bad": f"{max(schedule.values()):.0f}",
        "udp_d": slope("d", "udp-fedavg"),
        "theorem_d": slope("d", "fedceo-theorem"),
        "noise_d": slope("d", "fedceo-noise-mean"),
        "centaur_d": slope("d", "centaur"),
        "jain_d": slope("d", "jain"),
        "udp_k": slope("K, N fixed", "udp-fedavg"),
        "noise_k": slope("K, N fixed", "fedceo-noise-mean"),
        "udp_sigma": slope("sigma", "udp-fedavg"),
        "udp_sigma_product": slope("sigma", "udp-fedavg", 1),
        "udp_n_product": slope("N, K fixed", "udp-fedavg", 1),
        "udp_n": slope("N, K fixed", "udp-fedavg"),
        "jain_n": slope("N = K", "jain"),
        "base": f"{np.mean(base['udp-fedavg'][0][64]):.4f}",
        "predicted": f"{0.5 * 64 * OUTPUTS / 128**2 / (1 - (1 - RATE) ** 2):.4f}",
        "nothing": f"{np.mean([untrained(64, 128, seed) for seed in range(about['seeds'])]):.2g} for d = 64",
        "gain": f"{top['udp-fedavg'] / top['fedceo-noise-mean']:.1f}",
        "gap": f"{100 * gap:.2g}",
        "same": f"{100 * theorem:.2g}",
        "mean_epsilon": f"{base['fedceo-noise-mean'][1][64]:.0f}",
        "own_epsilon": f"{base['fedceo-noise-own'][1][64]:.0f}",
        "seeds": str(about["seeds"]),
        "delta": f"{about['delta']:g}",
        "tau": f"{about['tau_0']:g}",
        "machine": about["machine"],
        "date": about["date"],
        "minutes": f"{about['processor_seconds'] / 60:.0f}",
        "versions": ", ".join(f"{name} {version}" for name, version in about["versions"].items()),
    }


def untrained(dimension: int, clients: int, seed: int) -> float:
    """f(0) - f(w*)."""
    return make_problem(dimension, clients, seed).excess(torch.zeros(OUTPUTS, dimension))


def page() -> str:
    parts = [HEAD.format_map(numbers())]
    for sweep in SWEEPS:
        parts.append(f"### {TITLES[sweep]}\n\n{slope_table(sweep)}")
    parts.append("## The numbers\n\nMean epsilon_u over the seeds; in brackets what is left of it without noise.\n")
    for sweep in SWEEPS:
        parts.append(f"### {TITLES[sweep]}\n\n{number_table(sweep)}")
    return "\n".join([*parts, section()[0] + TAIL.format_map(numbers())])


def write() -> None:
    (DOCS / "theory.md").write_text(page())
    drawing = draw({(sweep, method): measured(sweep, method) for sweep in SWEEPS for method in EVERY})
    drawing.figure.savefig(DOCS / "theory.png", dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    write()

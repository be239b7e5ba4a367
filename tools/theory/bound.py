"""The utility bound as a number: its constants on the convex problem, the bound they give, and what is measured.

    python tools/theory/bound.py

Writes results/theory.bound.json; page.py shows it. The theorem (Section 4.1) bounds epsilon_u by
sqrt(2) L_1 / K (sqrt(r) tau_0 + sqrt(d h) C sigma) / (2 mu m) where m, below, is positive. Constants are taken along
the way that a run takes: a bound over a larger region would only be worse.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import ROUNDS, TAU, Cell, experiment_of
from problem import OUTPUTS, Problem, contrast_basis, linear_model, make_problem
from torch import Tensor

from fedceo.simulation.preparing import prepare
from fedceo.studies.tune import changed

RESULT = Path(__file__).resolve().parents[2] / "results" / "theory.bound.json"
SEEDS = 3
RATES = (0.5, 1.0)
"""eta of the other tables, and the one with the largest m there is on a quadratic."""
CELLS = [Cell("", d, n, n, 1.0) for d, n in ((16, 128), (64, 128), (256, 128), (64, 512))]
METHODS = ("udp-fedavg", "fedceo-theorem")


@dataclass(frozen=True)
class Constants:
    """mu, L_1, L_2, B and gamma of the theorem's assumptions."""

    mu: float
    lipschitz: float
    smooth: float
    dissimilarity: float
    inexact: float

    def m(self, rate: float, cohort: int) -> float:
        """The theorem's m, which it needs to be above 0."""
        b, g, mu2 = self.dissimilarity, 1 + self.inexact, self.mu**2
        of_cohort = math.sqrt(2) * (self.mu * b * g + 2 * self.smooth * g**2 * b**2) / (math.sqrt(cohort) * mu2)
        of_cohort += 2 * self.smooth * g**2 * b**2 / (cohort * mu2)
        return rate - self.smooth * b**2 * g**2 / (2 * mu2) - of_cohort

    def bound(self, cell: Cell, rate: float) -> float | None:
        """The bound on epsilon_u with C = 1; None where m is not positive, so that the theorem says nothing.

        The tubal rank r is h at most. UDP-FedAvg is FedCEO with tau_0 = 0.
        """
        m = self.m(rate, cell.K)
        if m <= 0:
            return None
        tau = TAU if cell.method == "fedceo-theorem" else 0.0
        noise = math.sqrt(OUTPUTS) * tau + math.sqrt(cell.d * OUTPUTS) * cell.sigma
        return math.sqrt(2) * self.lipschitz / cell.K * noise / (2 * self.mu * m)


def gradients(problem: Problem, weights: Tensor, rows: Tensor | None = None) -> Tensor:
    """(N, h, d) gradients of all clients' losses at W (h, d), or of client k at rows[k] (N, h, d)."""
    basis, count = contrast_basis(), len(problem.points)
    at = weights.double()[None] if rows is None else rows.double()
    chances = (problem.points @ at.transpose(1, 2) @ basis.T).softmax(2)
    errors = chances - torch.nn.functional.one_hot(problem.labels, basis.shape[0]).double()
    return (errors @ basis).transpose(1, 2) @ problem.points / count


def curvatures(problem: Problem, weights: Tensor) -> Tensor:
    """Eigenvalues of the Hessian at W, which all clients share: labels do not enter it, and points are orthogonal."""
    basis = contrast_basis()
    p = (problem.points @ weights.double().T @ basis.T).softmax(1)
    middle = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    return torch.linalg.eigvalsh(basis.T @ middle @ basis)


def constants_along(problem: Problem, way: list[Tensor], rate: float) -> Constants:
    """The worst of each constant over the global models of a run."""
    found: dict[str, list[float]] = {"mu": [], "l1": [], "l2": [], "b": [], "g": []}
    for weights in way:
        of_clients, curved = gradients(problem, weights), curvatures(problem, weights)
        norms = of_clients.flatten(1).norm(dim=1)
        after = gradients(problem, weights, weights.double()[None] - rate * of_clients).flatten(1).norm(dim=1)
        found["mu"].append(float(curved.min()))
        found["l2"].append(float(curved.max()))
        found["l1"].append(float(norms.max()))
        found["b"].append(float(norms.square().mean().sqrt() / of_clients.mean(0).norm()))
        found["g"].append(float((after / norms).max()))
    return Constants(min(found["mu"]), max(found["l1"]), max(found["l2"]), max(found["b"]), max(found["g"]))


def kindest(lipschitz: float, rate: float) -> Constants:
    """The best that could be: a quadratic that all clients share, with L_1 as it is on the way."""
    return Constants(mu=1.0, lipschitz=lipschitz, smooth=1.0, dissimilarity=1.0, inexact=abs(1 - rate))


def measure(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
    problem = make_problem(cell.d, cell.N, seed)
    experiment = changed(experiment_of(cell, seed), {"train.learning_rate": rate})
    simulation = prepare(experiment, problem.federation, linear_model(cell.d))
    way = []
    while simulation.round < ROUNDS:
        way.append(simulation.state.weights["0.weight"].clone())
        simulation.step()
    constants = constants_along(problem, way, rate)
    loss = problem.excess(simulation.state.weights["0.weight"])
    about = {"rate": rate, "seed": seed, "epsilon_u": loss, "untrained": problem.excess(torch.zeros(OUTPUTS, cell.d))}
    return asdict(cell) | about | {"constants": asdict(constants)}


def main() -> None:
    torch.set_num_threads(1)
    runs = []
    for cell in CELLS:
        for method in METHODS:
            for rate in RATES:
                named = Cell(method, cell.d, cell.N, cell.K, cell.sigma)
                runs += [measure(named, rate, seed) for seed in range(SEEDS)]
    RESULT.write_text("[\n" + ",\n".join(map(json.dumps, runs)) + "\n]\n")


SECTION = """## The bound as a number

The theorem bounds epsilon_u by sqrt(2) L_1 / K (sqrt(r) tau_0 + sqrt(d h) C sigma) / (2 mu m), m = eta - L_2 B^2
(1 + gamma)^2 / (2 mu^2) - terms in 1 / sqrt(K). `tools/theory/bound.py` takes its constants on this problem along the
way of each run (gradients and Hessians of all clients in closed form; the worst over {rounds} rounds and {seeds}
seeds):

{constants}

**m is negative with every set of constants that was met, so the theorem says nothing there**: B is the ratio of a
client's gradient to that of all, which near the minimum is as large as one likes. For a number the constants have to be
the kindest that there are: a quadratic that all clients share (mu = L_2 = B = 1, gamma = |1 - eta|), r = h, and only
L_1 as it is met. With eta = 0.5 m is negative even then. With eta = 1:

{numbers}

The bound holds there, with room: it is {least} to {most} times what is measured, and in {useless} of {rows} rows above
the loss of a model that nobody has trained. It sets FedCEO behind UDP-FedAvg, by what tau_0 adds; measured, they
differ by {apart} % at most.

"""


def section() -> tuple[str, dict[str, str]]:
    """The section of docs/theory.md, and its numbers that the page's beginning quotes."""
    runs = json.loads(RESULT.read_text())
    by_cell: dict[tuple[int, int, float, str], list[dict[str, Any]]] = {}
    for run in runs:
        by_cell.setdefault((run["d"], run["K"], run["rate"], run["method"]), []).append(run)
    met, kind, ratios, useless = [], [], [], 0
    losses: dict[tuple[int, int], list[float]] = {}
    for (d, k, rate, method), alike in by_cell.items():
        cell = Cell(method, d, k, k, alike[0]["sigma"])
        each = [Constants(**run["constants"]) for run in alike]
        worst = Constants(
            min(c.mu for c in each), max(c.lipschitz for c in each), max(c.smooth for c in each),
            max(c.dissimilarity for c in each), max(c.inexact for c in each),
        )  # fmt: skip
        if method == "fedceo-theorem":
            numbers = (worst.mu, worst.smooth, worst.lipschitz, worst.dissimilarity, worst.inexact, worst.m(rate, k))
            met.append((str(d), str(k), f"{rate:g}", *(f"{number:.3g}" for number in numbers)))
        bound = kindest(worst.lipschitz, rate).bound(cell, rate)
        if bound is not None:
            loss = float(np.mean([run["epsilon_u"] for run in alike]))
            untrained = float(np.mean([run["untrained"] for run in alike]))
            name = "UDP-FedAvg" if method == "udp-fedavg" else "FedCEO as in the proof"
            kind.append(
                (name, str(d), str(k), f"{bound:.3g}", f"{loss:.2g}", f"{bound / loss:.0f}", f"{untrained:.2g}")
            )
            ratios.append(bound / loss)
            useless += bound > untrained
            losses.setdefault((d, k), []).append(loss)
    ends = {"bound_least": f"{min(ratios):.0f}", "bound_most": f"{max(ratios):,.0f}"}
    text = SECTION.format(
        rounds=ROUNDS, seeds=SEEDS, least=ends["bound_least"], most=ends["bound_most"],
        constants=_table(("d", "N = K", "eta", "mu", "L_2", "L_1", "B", "gamma", "m"), met),
        numbers=_table(("method", "d", "N = K", "bound", "measured", "times", "untrained"), kind),
        useless=useless, rows=len(ratios),
        apart=f"{100 * max(max(pair) / min(pair) - 1 for pair in losses.values()):.0f}",
    )  # fmt: skip
    return text, ends


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


if __name__ == "__main__":
    main()

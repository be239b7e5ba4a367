"""docs/theory.md says what results/theory.json says, and the problem it was measured on is the one it describes."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedceo.experiment.file import parse_experiment
from fedceo.simulation import rounds

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def theory() -> Iterator[Any]:
    """Imports one of the scripts by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools" / "theory")
        yield importlib.import_module


@pytest.fixture
def found() -> Any:
    file = ROOT / "results" / "theory.json"
    if not file.exists():
        pytest.skip("not measured yet: python tools/theory/measure.py")
    return json.loads(file.read_text())


@pytest.mark.usefixtures("found")
def test_the_page_is_what_the_script_writes(theory: Any) -> None:
    expected = theory("page").page()
    assert (ROOT / "docs" / "theory.md").read_text() == expected, "run: python tools/theory/page.py"


def test_every_point_of_every_sweep_has_all_seeds_and_the_file_says_where_it_was_run(theory: Any, found: Any) -> None:
    measure = theory("measure")
    assert {"machine", "date", "versions", "experiments"} <= set(found["about"])
    for name, table in found["about"]["experiments"].items():
        # read anew, since fields came after the measurement
        assert measure.experiment_of(measure.Cell(name, 64, 128, 128, 1.0), 0) == parse_experiment(table)
    seeds: dict[Any, set[int]] = {}
    for run in found["runs"]:
        cell = measure.Cell(*(run[name] for name in ("method", "d", "N", "K", "sigma")))
        seeds.setdefault(cell, set()).add(run["seed"])
    for cells, seed in measure.all_runs():
        assert all(seed in seeds[cell] for cell in cells)


def test_a_run_of_the_file_comes_out_again(theory: Any, found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file was measured by version 0.1.0, whose noise followed from the seed alone."""
    assert found["about"]["versions"]["fedceo"] == "0.1.0"
    monkeypatch.setattr(rounds, "make_noise_key", lambda *of_the_run: "")
    measure = theory("measure")
    cells = [measure.Cell(method, 16, 128, 128, 1.0) for method in ("udp-fedavg", "fedceo-noise-own")]
    for cell, loss in zip(cells, measure.utility_losses(cells, seed=1), strict=True):
        (run,) = (r for r in found["runs"] if r["seed"] == 1 and measure.Cell(*list(r.values())[:5]) == cell)
        assert loss == pytest.approx(run["epsilon_u"], rel=1e-3)
        assert measure.privacy_loss(cell) == pytest.approx(run["epsilon_p"], rel=1e-9)


@pytest.mark.parametrize("dimension", [8, 32])
def test_the_minimiser_and_the_curvature_are_as_promised(theory: Any, dimension: int) -> None:
    problem = theory("problem").make_problem(dimension, 128, seed=3)
    best = problem.minimiser
    assert float(torch.func.grad(problem.loss)(best).norm()) < 1e-10
    assert problem.excess(best) == 0.0

    x = problem.points
    basis = theory("problem").contrast_basis()

    def client_loss(weights: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(x @ weights.T @ basis.T, problem.labels[0])

    hessian = torch.func.jacrev(torch.func.grad(client_loss))(torch.zeros_like(best)).reshape(best.numel(), -1)
    torch.testing.assert_close(hessian, torch.eye(best.numel(), dtype=torch.float64))


def test_the_loss_is_that_of_the_records_that_clients_hold(theory: Any) -> None:
    problems = theory("problem")
    problem = problems.make_problem(8, 64, seed=0)
    weights = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    model = problems.linear_model(8)
    model[0].weight.data.copy_(weights)
    data = problem.federation
    with torch.no_grad():
        losses = [torch.nn.functional.cross_entropy(model(data.x[own]), data.y[own]) for own in data.train]
    assert float(problem.loss(weights)) == pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)


def test_udp_fedavg_loses_what_noise_on_a_quadratic_would_cost(theory: Any) -> None:
    """(1/2) d h (sigma C / K)^2 / (1 - (1 - eta)^2), the stationary loss where the Hessian is the identity."""
    measure = theory("measure")
    cell = measure.Cell("udp-fedavg", 32, 128, 128, 1.0)
    losses = [measure.utility_losses([cell], seed)[0] for seed in range(3)]
    predicted = 0.5 * 32 * 4 * (1 / 128) ** 2 / (1 - (1 - measure.RATE) ** 2)
    assert float(np.mean(losses)) == pytest.approx(predicted, rel=0.25)


def test_the_best_representation_is_no_worse_than_the_planted_one(theory: Any) -> None:
    representation, problem = theory("representation"), theory("problem").make_problem(16, 64, seed=0)
    least = representation.least_representation_loss(problem)
    planted = representation.representation_loss(problem, problem.direction)
    assert least <= planted < representation.representation_loss(problem, torch.eye(16)[:1])
    assert representation.representation_loss(problem, 7 * problem.direction) == pytest.approx(planted, rel=1e-8)


@given(exponent=st.floats(-3, 3), scale=st.floats(0.01, 100))
def test_a_power_law_gives_its_exponent(theory: Any, exponent: float, scale: float) -> None:
    noise = np.random.default_rng(0).normal(scale=1e-3, size=(4, 5))
    values = {
        x: list(scale * x**exponent * np.exp(row)) for x, row in zip((16.0, 64.0, 256.0, 1024.0), noise, strict=True)
    }
    found = theory("slopes").fit(values)
    assert found.low < found.slope < found.high
    assert found.slope == pytest.approx(exponent, abs=2e-3)
    assert not found.meets(exponent + 0.1)


def test_points_on_the_floor_do_not_count(theory: Any) -> None:
    slopes = theory("slopes")
    values = {16.0: [1.0, 1.2], 64.0: [4.0, 4.4], 256.0: [-1.0, 9.0]}
    assert list(slopes.above_floor(values, {16.0: 0.9, 64.0: 0.9, 256.0: 0.0})) == [64.0]
    assert slopes.fit({16.0: [1.0, 2.0], 64.0: [2.0, 3.0]}) is None, "two points are no line"


def test_the_constants_of_the_bound_are_those_of_the_losses(theory: Any) -> None:
    bound, problem = theory("bound"), theory("problem").make_problem(8, 128, seed=1)
    basis, weights = theory("problem").contrast_basis(), 0.3 * torch.randn(4, 8, dtype=torch.float64)

    def client_loss(weights: Tensor, client: int) -> Tensor:
        return torch.nn.functional.cross_entropy(problem.points @ weights.T @ basis.T, problem.labels[client])

    found = bound.gradients(problem, weights)
    for client in (0, 77):
        torch.testing.assert_close(found[client], torch.func.grad(client_loss)(weights, client))
    rows = bound.gradients(problem, weights, weights[None] - 0.5 * found)
    torch.testing.assert_close(rows[77], torch.func.grad(client_loss)(weights - 0.5 * found[77], 77))
    hessian = torch.func.jacrev(torch.func.grad(client_loss))(weights, 0).reshape(32, 32)
    ends = torch.linalg.eigvalsh(hessian)
    curved = bound.curvatures(problem, weights)
    assert (float(curved.min()), float(curved.max())) == pytest.approx((float(ends[0]), float(ends[-1])))


def test_the_bound_is_the_theorems_and_says_nothing_without_a_positive_m(theory: Any) -> None:
    bound, measure = theory("bound"), theory("measure")
    cell = measure.Cell("fedceo-theorem", 64, 128, 128, 1.0)
    kind = bound.kindest(2.0, 1.0)
    m = 1 - 0.5 - (2**0.5 * 3 / 128**0.5 + 2 / 128)
    assert kind.m(1.0, 128) == pytest.approx(m)
    assert kind.bound(cell, 1.0) == pytest.approx(2**0.5 * 2 / 128 * (2 * 10 + 16) / (2 * m))
    assert bound.kindest(2.0, 0.5).bound(cell, 0.5) is None, "gamma is 1/2 there"
    assert bound.Constants(0.9, 2.0, 1.1, 2.0, 0.0).bound(cell, 1.0) is None

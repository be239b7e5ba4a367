"""L-BFGS on many rows: the textbook's direction, independent rows, hard functions, ends."""

import torch
from torch import Tensor

from fedceo.attacks.lbfgs import Objective, _Search, minimise


def rosenbrock(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    points = points.detach().requires_grad_()
    x, y = points[:, ::2], points[:, 1::2]
    values = ((1 - x) ** 2 + 100 * (y - x**2) ** 2).sum(1)
    (gradient,) = torch.autograd.grad(values.sum(), points)
    return values.detach(), gradient


def quadratic(rows: int, size: int) -> tuple[Objective, Tensor, Tensor]:
    """One ill-conditioned quadratic a row, and where each has its minimum."""
    rng = torch.Generator().manual_seed(0)
    rotations = torch.linalg.qr(torch.randn(rows, size, size, generator=rng, dtype=torch.float64)).Q
    matrices = rotations @ torch.diag(torch.logspace(0, 3, size, dtype=torch.float64)) @ rotations.mT
    centres = torch.randn(rows, size, generator=rng, dtype=torch.float64)

    def objective(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        off = points - centres[rows]
        gradient = torch.einsum("bij,bj->bi", matrices[rows], off)
        return (off * gradient).sum(1) / 2, gradient

    return objective, centres, torch.zeros_like(centres)


def test_the_direction_is_that_of_the_two_loops() -> None:
    """Against the recursion of the textbook, also when the ring of pairs has gone round."""
    objective, _, start = quadratic(3, 12)
    search = _Search(objective, start, 1.0, history=4)
    pairs: list[tuple[Tensor, Tensor]] = []
    rng = torch.Generator().manual_seed(1)
    for _ in range(7):
        s = torch.randn(3, 12, generator=rng, dtype=torch.float64)
        y = objective(s + start, search.rows)[1] - objective(start, search.rows)[1]
        pairs = [*pairs, (s, y)][-4:]
        q, alphas = search.gradient.clone(), []
        for a, b in reversed(pairs):
            alphas.append((a * q).sum(1, keepdim=True) / (a * b).sum(1, keepdim=True))
            q = q - alphas[-1] * b
        r = q * (s * y).sum(1, keepdim=True) / (y * y).sum(1, keepdim=True)
        for (a, b), alpha in zip(pairs, reversed(alphas), strict=True):
            r = r + a * (alpha - (b * r).sum(1, keepdim=True) / (a * b).sum(1, keepdim=True))
        torch.testing.assert_close(search._direction(s, y), -r)


def test_it_finds_minima() -> None:
    objective, centres, start = quadratic(5, 20)
    found = minimise(objective, start, steps=20)
    torch.testing.assert_close(found.points, centres, atol=1e-6, rtol=0)
    assert (found.iterations < 200).all(), "rows end when their gradient does"
    hard = minimise(rosenbrock, torch.full((2, 10), -1.2, dtype=torch.float64), steps=40, history=10)
    torch.testing.assert_close(hard.points, torch.ones(2, 10, dtype=torch.float64), atol=1e-5, rtol=0)


def test_a_row_does_not_feel_the_others() -> None:
    """Each row ends where it ends alone, also beside one that ends at once and one that is broken from the start."""
    rng = torch.Generator().manual_seed(2)
    start = torch.randn(4, 6, generator=rng, dtype=torch.float64)
    start[1], start[2] = 1.0, torch.nan
    together = minimise(rosenbrock, start, steps=3)
    for row in (0, 3):
        alone = minimise(rosenbrock, start[row : row + 1], steps=3)
        torch.testing.assert_close(together.points[row], alone.points[0])
        assert together.iterations[row] == alone.iterations[0]
    assert together.values[1] == 0 and together.iterations[2] == 0


def test_values_never_rise_and_a_cliff_is_not_taken() -> None:
    def cliff(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        values, gradient = rosenbrock(points, rows)
        return torch.where(points.abs().amax(1) > 2, torch.nan, values), gradient

    seen = []
    start = torch.tensor([[-1.5, 1.9], [1.9, -1.9]], dtype=torch.float64)
    minimise(cliff, start, steps=15, on_step=lambda step, points: seen.append(cliff(points, torch.arange(2))[0]))
    values = torch.stack(seen)
    assert torch.isfinite(values).all() and (values.diff(dim=0) <= 0).all() and (values[-1] < 1e-6).all()

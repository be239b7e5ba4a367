"""L-BFGS on many functions at once: every row has its own history, its own step size and its own end.

The rows of a matrix are minimised side by side, so that one call of the objective serves all of them. The direction
needs two passes over the history instead of one for every pair in it: with R the upper triangle of S'Y, D its diagonal
and gamma the scale of the newest pair, the two loops of the textbook are two triangular solves,

    R a = S'g,    R'c = D a - gamma Y'(g - Y a),    direction = -(gamma (g - Y a) + S c).

An unused pair is a pair of zeros with 1 on the diagonal, which changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(points (B, n), rows (B,)) -> values (B,) and gradients (B, n); `rows` are the points' row numbers in the start."""

INNER = 20
"""Iterations of one step, as in torch.optim.LBFGS."""
SUFFICIENT = 1e-4
"""Fraction of the decrease predicted by the slope that a step must bring."""
SMALLEST = 2.0**-24
"""Step size below which a row has ended: its precision allows no more."""
STALLED = 1e-3
"""Relative decrease of a row's value in a whole step below which the row has ended."""


@dataclass(frozen=True)
class Minimum:
    """The end of every row: its point, (B, n), its value, (B,), and its number of iterations, (B,)."""

    points: Tensor
    values: Tensor
    iterations: Tensor


def minimise(
    objective: Objective,
    start: Tensor,
    *,
    steps: int,
    learning_rate: float = 1.0,
    history: int = 100,
    enough: Tensor | float = 0.0,
    on_step: Callable[[int, Tensor], None] | None = None,
) -> Minimum:
    """Take `steps` steps of INNER iterations from every row of start, (B, n).

    A trial point that does not decrease its row's value enough is rejected, and the row tries a smaller step in the
    next iteration, while the other rows go on. Rows that have ended are no longer evaluated.

    Args:
        learning_rate: the first step size that is tried.
        history: the number of pairs that are kept.
        enough: a row has ended when its value is no larger, one number or (B,).
        on_step: called with the number of the step, from 1, and all points (B, n).
    """
    points, values = start.clone(), start.new_zeros(len(start))
    iterations = torch.zeros(len(start), dtype=torch.int64, device=start.device)
    search = _Search(objective, start, learning_rate, history)
    enough = torch.as_tensor(enough).to(values).expand(len(start))
    for step in range(1, steps + 1):
        before = search.value
        for _ in range(INNER if len(search.rows) else 0):
            iterations[search.rows] += search.going.long()
            search.advance()
            search.going &= search.value > enough[search.rows]
            if not bool(search.going.any()):
                break
        search.going &= search.value <= before * (1 - STALLED)
        points[search.rows], values[search.rows] = search.point, search.value
        if on_step is not None:
            on_step(step, points)
        if float(search.going.double().mean()) < 0.9:
            search.keep(search.going.nonzero().squeeze(1))
    return Minimum(points, values, iterations)


class _Search:
    """The rows that have not ended."""

    def __init__(self, objective: Objective, start: Tensor, learning_rate: float, history: int) -> None:
        count, size = start.shape
        self.objective, self.learning_rate, self.history = objective, learning_rate, history
        self.rows = torch.arange(count, device=start.device)
        self.point = start.clone()
        self.value, self.gradient = objective(self.point, self.rows)
        self.going = torch.isfinite(self.value)
        self.direction = -self.gradient
        self.line = learning_rate * (1 / self.gradient.abs().sum(1).clamp_min(1e-30)).clamp_max(1.0)
        self.scale = torch.ones_like(self.value)
        self.s, self.y = start.new_zeros(count, history, size), start.new_zeros(count, history, size)
        self.sy, self.yy = (start.new_zeros(count, history, history, dtype=torch.float64) for _ in range(2))
        self.newest = -1
        self.filled = 0

    def keep(self, indices: Tensor) -> None:
        """Go on with these rows alone."""
        for name in ("rows", "point", "value", "gradient", "going", "direction", "line", "scale", "s", "y", "sy", "yy"):
            setattr(self, name, getattr(self, name)[indices])

    def advance(self) -> None:
        """Try one point in every row, and accept it where the value decreases enough."""
        trial = self.point + self.line[:, None] * self.direction
        value, gradient = self.objective(trial, self.rows)
        slope = (self.gradient * self.direction).sum(1)
        better = self.going & (value <= self.value + SUFFICIENT * self.line * slope) & torch.isfinite(gradient.sum(1))
        taken = better[:, None]
        moved = torch.where(taken, trial - self.point, 0.0)
        bent = torch.where(taken, gradient - self.gradient, 0.0)
        self.point = torch.where(taken, trial, self.point)
        self.gradient = torch.where(taken, gradient, self.gradient)
        self.value = torch.where(better, value, self.value)
        direction = self._direction(moved, bent)
        self.direction = torch.where(taken, direction, self.direction)
        self.line = torch.where(better, self.learning_rate, self.line / 4)
        self.going &= self.line > SMALLEST * self.learning_rate

    def _direction(self, moved: Tensor, bent: Tensor) -> Tensor:
        """Store a pair (s, y) and return the new direction, (B, n)."""
        curvature, square = (moved * bent).sum(1), (bent * bent).sum(1)
        usable = curvature > 1e-10 * square
        self.scale = torch.where(usable, curvature / square, self.scale)
        self.newest = (self.newest + 1) % self.history
        self.filled = min(self.filled + 1, self.history)
        self.s[:, self.newest] = torch.where(usable[:, None], moved, 0.0)
        self.y[:, self.newest] = torch.where(usable[:, None], bent, 0.0)
        s, y = self.s[:, : self.filled], self.y[:, : self.filled]
        left = torch.stack([self.gradient, self.y[:, self.newest]], 1)  # half the time of a product from the right
        with_s, with_y = torch.bmm(left, s.mT).mT.double(), torch.bmm(left, y.mT).mT.double()
        self.sy[:, : self.filled, self.newest] = with_s[..., 1]
        self.yy[:, : self.filled, self.newest] = self.yy[:, self.newest, : self.filled] = with_y[..., 1]

        oldest = (self.newest + 1) % self.filled  # a ring buffer: pairs are rolled into the order of age and back
        sy = self.sy[:, : self.filled, : self.filled].roll((-oldest, -oldest), (1, 2)).triu()
        diagonal = sy.diagonal(dim1=1, dim2=2)
        diagonal[diagonal == 0] = 1.0
        scale = self.scale.double()[:, None, None]
        aged = torch.linalg.solve_triangular(sy, with_s[..., :1].roll(-oldest, 1), upper=True)
        a = aged.roll(oldest, 1)
        bent_rest = with_y[..., :1] - self.yy[:, : self.filled, : self.filled] @ a
        rest = diagonal[..., None] * aged - scale * bent_rest.roll(-oldest, 1)
        c = torch.linalg.solve_triangular(sy.mT, rest, upper=False).roll(oldest, 1)
        ahead = torch.bmm((scale * a).mT.to(y), y) - torch.bmm(c.mT.to(s), s)
        direction = ahead[:, 0] - self.scale[:, None] * self.gradient
        downhill = ((direction * self.gradient).sum(1) < 0) & torch.isfinite(direction.sum(1))
        return torch.where(downhill[:, None], direction, -self.scale[:, None] * self.gradient)

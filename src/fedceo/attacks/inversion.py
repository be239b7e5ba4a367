"""Attacks that reconstruct a record from its update: DLG, iDLG and Inverting Gradients.

Each attack looks for a record whose update is like the one that the attacker holds. All records and restarts of one
call are worked on together; among restarts the best match of the update is chosen, never the likeness to the truth.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedceo.attacks.lbfgs import minimise
from fedceo.attacks.sender import Sender
from fedceo.errors import UsageError
from fedceo.tensors.weights import Weights

DESCRIPTIONS = {
    "dlg": "Deep Leakage from Gradients: record and label by L-BFGS on the squared distance of gradients",
    "idlg": "the same with the label read from the last layer's gradient",
    "ig": "Inverting Gradients: 1 - cosine and a falling total variation by Adam, label read likewise",
}
ITERATIONS = {"dlg": 300, "idlg": 300, "ig": 4800}
LEARNING_RATES = {"dlg": 1.0, "idlg": 1.0, "ig": 0.1}
SMOOTHNESS = (0.1, 1e-5)
"""Weight of the total variation of a picture in Inverting Gradients, at the first step and at the last.

The large weight at first leads out of the noise; if it stayed, it would outweigh the rest of the cosine (0.006 between
a digit and its mean colour on a sigmoid LeNet), and the attack would end in a constant colour.
"""
FOUND = 1e-8
"""Squared distance, relative to the update's square, at which a candidate is the record: over 40 dB on CIFAR-10."""
SNAPSHOTS = 10
"""Intermediate pictures that are kept of a reconstruction: every 30 of 300 steps."""
MOST_ENTRIES = 2**26
"""Entries of updates that are held in memory at once; more rows than that are evaluated in parts."""


@dataclass(frozen=True)
class Attack:
    """The settings of an attack.

    Attributes:
        name: dlg, idlg or ig.
        iterations: steps of L-BFGS (20 iterations each) or of Adam; None: the attack's default.
        learning_rate: the optimiser's rate; None: 1 for L-BFGS, 0.1 for Adam.
        restarts: starts for each record.
        seed: the seed from which starts are drawn.
        smoothness: for ig, the weight of the total variation at the first step and at the last.
    """

    name: str = "dlg"
    iterations: int | None = None
    learning_rate: float | None = None
    restarts: int = 2
    seed: int = 0
    smoothness: tuple[float, float] = SMOOTHNESS

    def __post_init__(self) -> None:
        if self.name not in DESCRIPTIONS:
            near = get_close_matches(self.name, DESCRIPTIONS, n=1)
            hint = f", did you mean {near[0]}?" if near else f"; known are {', '.join(DESCRIPTIONS)}"
            raise UsageError(f"--attack: unknown attack {self.name!r}{hint}")
        for name in ("iterations", "restarts"):
            given = getattr(self, name)
            if given is not None and given < 1:
                raise UsageError(f"--{name}: {given}, expected at least 1")

    @property
    def steps(self) -> int:
        return self.iterations or ITERATIONS[self.name]

    @property
    def rate(self) -> float:
        return self.learning_rate or LEARNING_RATES[self.name]


@dataclass(frozen=True)
class Reconstruction:
    """The reconstructed records of n updates, as inputs of the model.

    Attributes:
        x: (n, *shape) records.
        labels: (n,) int64 labels.
        mismatch: (n,) values of the function that was minimised, for the chosen restart.
        path: step -> (n, *shape) records at that step; step 0 is the start.
    """

    x: Tensor
    labels: Tensor
    mismatch: Tensor
    path: dict[int, Tensor] = field(default_factory=dict)


def reconstruct(
    attack: Attack, sender: Sender, held: Weights, classes: int, box: tuple[Tensor, Tensor]
) -> Reconstruction:
    """Attack n updates, name -> (n, ...).

    Args:
        box: the smallest and the largest input that a record can have, each (*shape); Inverting Gradients stays inside.
    """
    shape = tuple(box[0].shape)
    first = next(iter(held.values()))
    count, size = len(first), prod(shape)
    rng = torch.Generator().manual_seed(attack.seed)
    labels = None if attack.name == "dlg" else read_labels(held)
    width = size + (classes if labels is None else 0)
    start = torch.randn(attack.restarts * count, width, generator=rng).to(first)
    problem = _Problem(sender, held, labels, shape, classes, cosine=attack.name == "ig")
    path = {0: start}

    def look(step: int, points: Tensor) -> None:
        if step % max(1, attack.steps // SNAPSHOTS) == 0:
            path[step] = points.clone()

    if attack.name == "ig":
        points, values = _adam(problem, start, attack, box, look)
    else:
        squares = torch.stack([update.flatten(1).square().sum(1) for update in held.values()]).sum(0)
        enough = FOUND * squares.repeat(attack.restarts)
        found = minimise(problem, start, steps=attack.steps, learning_rate=attack.rate, enough=enough, on_step=look)
        points, values = found.points, found.values
    path[attack.steps] = points
    by_restart = torch.nan_to_num(values, nan=torch.inf).view(attack.restarts, count)
    chosen = by_restart.argmin(0) * count + torch.arange(count, device=first.device)
    pictures = {step: each[chosen, :size].view(count, *shape) for step, each in sorted(path.items())}
    guessed = points[chosen, size:].argmax(1) if labels is None else labels
    return Reconstruction(pictures[attack.steps], guessed, values[chosen], pictures)


def read_labels(held: Weights) -> Tensor:
    """(n,) labels of single records: for each the one output whose last-layer weights would grow (Zhao et al. 2020).

    The gradient of an output's weights is (p - 1) times the layer's inputs for the true label and p times them for the
    others. After sigmoid or ReLU no input is negative, so the true row is the one with the smallest sum.
    """
    last = [update for update in held.values() if update.ndim == 3][-1]
    return last.sum(2).argmin(1)


@dataclass
class _Problem:
    """The mismatch of many candidates as a function of one matrix, (B, pixels and, where unknown, label logits)."""

    sender: Sender
    held: Weights
    labels: Tensor | None
    shape: tuple[int, ...]
    classes: int
    cosine: bool
    smoothness: float = 0.0

    def __call__(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Values (B,) and gradients (B, width); row r is a candidate for update r modulo the number of updates."""
        at_once = max(1, MOST_ENTRIES // sum(w[0].numel() for w in self.held.values()))
        together = zip(torch.split(points, at_once), torch.split(rows, at_once), strict=True)
        parts = [self._evaluate(*part) for part in together]
        return torch.cat([value for value, _ in parts]), torch.cat([gradient for _, gradient in parts])

    def _evaluate(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        points = points.detach().requires_grad_()
        size = prod(self.shape)
        x = points[:, :size].view(-1, *self.shape)
        indices = rows % len(next(iter(self.held.values())))
        if self.labels is None:
            labels = points[:, size:].softmax(1)
        else:
            labels = F.one_hot(self.labels[indices], self.classes).to(points)
        held = {name: w[indices] for name, w in self.held.items()}
        values = vmap(self._mismatch)(x, labels, held)
        if self.smoothness:
            values = values + self.smoothness * total_variation(x)
        (gradient,) = torch.autograd.grad(values.sum(), points)  # rows are independent, so this is each row's gradient
        return values.detach(), gradient

    def _mismatch(self, x: Tensor, label: Tensor, held: Weights) -> Tensor:
        update = self.sender.update(x, label)
        pairs = [(update[name], held[name]) for name in held]
        if not self.cosine:
            return torch.stack([(u - h).square().sum() for u, h in pairs]).sum()
        inner, own, other = (
            torch.stack([(a * b).sum() for a, b in products]).sum()
            for products in (pairs, [(u, u) for u, _ in pairs], [(h, h) for _, h in pairs])
        )
        return 1 - inner / (own * other).sqrt().clamp_min(1e-12)


def total_variation(x: Tensor) -> Tensor:
    """(B,) mean absolute difference of neighbours, down and across; x: (B, channels, height, width)."""
    down = (x[:, :, 1:] - x[:, :, :-1]).abs().mean((1, 2, 3))
    across = (x[..., 1:] - x[..., :-1]).abs().mean((1, 2, 3))
    return down + across


def _adam(
    problem: _Problem,
    start: Tensor,
    attack: Attack,
    box: tuple[Tensor, Tensor],
    look: Callable[[int, Tensor], None],
) -> tuple[Tensor, Tensor]:
    """The points after all steps of Adam, and their 1 - cosine; Adam treats every entry, so every row, by itself.

    The rate falls tenfold after 3/8, 5/8 and 7/8 of the steps; the weight of the total variation falls geometrically.
    """
    points, rows = start.clone(), torch.arange(len(start), device=start.device)
    optimizer = torch.optim.Adam([points], lr=attack.rate)
    falls = [attack.steps * eighths // 8 for eighths in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls, gamma=0.1)
    first, last = attack.smoothness
    for step in range(1, attack.steps + 1):
        problem.smoothness = first * (last / first) ** (step / attack.steps)
        _, points.grad = problem(points, rows)
        optimizer.step()
        schedule.step()
        points.clamp_(box[0].flatten(), box[1].flatten())
        look(step, points)
    problem.smoothness = 0.0
    return points, problem(points, rows)[0]

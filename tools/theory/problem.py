"""A federation on which the paper's theory can be measured: every constant it holds fixed is fixed, whatever d is.

    problem = make_problem(dimension=64, clients=64, seed=0)
    problem.excess(weights)                        # f(w) - f(w*)

Every client holds the same d points, the rows of sqrt(d) Q with a random orthogonal Q, each once, with a label of its
own out of CLASSES. Logits are contrasts of W x, W in R^(h x d), so that a client's loss has the identity for a Hessian
at W = 0 and is strongly convex and smooth on every ball, with constants that depend on the ball alone. The points are
all independent, so f, the mean of the clients' losses, has its minimiser in closed form.

Client k's labels are drawn from the model V_k U: a direction U that all share, and V_k = V + a deviation of its own.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedceo.data import Federation

CLASSES = 5
OUTPUTS = CLASSES - 1
"""h, the columns of the parameter matrix."""
RANK = 1
"""Rank of the planted models: FedCEO's best case among those that are not zero."""
SIZE, DEVIATION = 0.6, 0.15
"""Norm of the common V, and of a client's deviation from it."""


class Contrasts(nn.Module):
    """(..., h) -> (..., CLASSES) logits that sum to zero, by sqrt(CLASSES) times an isometry."""

    basis: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("basis", contrast_basis().float())

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.basis.T


def contrast_basis() -> Tensor:
    """(CLASSES, h), orthogonal columns of norm sqrt(CLASSES), all orthogonal to the ones: Helmert's."""
    below = torch.tril(torch.ones(CLASSES, CLASSES, dtype=torch.float64), -1)[:, :OUTPUTS]
    columns = torch.eye(CLASSES, dtype=torch.float64)[:, :OUTPUTS] * torch.arange(OUTPUTS, 0, -1) - below
    return CLASSES**0.5 * columns / columns.norm(dim=0)


def linear_model(dimension: int) -> nn.Module:
    """W alone, from zero: f is strongly convex in it."""
    layer = nn.Linear(dimension, OUTPUTS, bias=False)
    nn.init.zeros_(layer.weight)
    return nn.Sequential(layer, Contrasts())


def shared_model(dimension: int, seed: int) -> nn.Module:
    """V B with a shared B (RANK x d) and a last layer V (h x RANK) for every client, as CENTAUR and Jain et al. ask."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body, head = nn.Linear(dimension, RANK, bias=False), nn.Linear(RANK, OUTPUTS, bias=False)
        nn.init.orthogonal_(body.weight)
        nn.init.zeros_(head.weight)
    return nn.Sequential(body, head, Contrasts())


@dataclass(frozen=True)
class Problem:
    """A federation and what is known of its losses.

    Attributes:
        federation: what the library trains on.
        points: (d, d) float64, the rows x_j.
        labels: (N, d), client k's label at x_j.
        direction: (RANK, d), the planted U, orthonormal.
    """

    federation: Federation
    points: Tensor
    labels: Tensor
    direction: Tensor

    @property
    def shares(self) -> Tensor:
        """(d, CLASSES) share of the clients with each label at each point."""
        return nn.functional.one_hot(self.labels, CLASSES).double().mean(0)

    @property
    def minimiser(self) -> Tensor:
        """(h, d) w*: at each point the log-odds are those of the shares, and X'X = d I takes them back to W."""
        return (self.points.T @ (self.shares.log() @ contrast_basis()) / (CLASSES * len(self.points))).T

    def loss(self, weights: Tensor) -> Tensor:
        """f(W), the mean cross-entropy over all clients' records; weights: (h, d)."""
        logits = self.points @ weights.double().T @ contrast_basis().T
        return -(self.shares * logits.log_softmax(1)).sum(1).mean()

    def excess(self, weights: Tensor) -> float:
        """f(W) - f(w*)."""
        return float(self.loss(weights) - self.loss(self.minimiser))


def make_problem(dimension: int, clients: int, seed: int) -> Problem:
    """d, N and a seed; everything random follows from it."""
    rng = np.random.default_rng([seed, dimension, clients])
    points = math.sqrt(dimension) * np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]
    side = rng.choice((-1.0, 1.0), dimension)
    common, own = rng.normal(size=OUTPUTS), rng.normal(size=(clients, OUTPUTS))
    heads = SIZE * common / np.linalg.norm(common) + DEVIATION * own / math.sqrt(OUTPUTS)
    logits = np.einsum("j,kh,ch->kjc", side, heads, contrast_basis().numpy(), optimize=True)
    labels = draw_labels(np.exp(logits - np.logaddexp.reduce(logits, 2, keepdims=True)), rng)
    x, y = torch.from_numpy(points), torch.from_numpy(labels)
    return Problem(_federation(x, y), x, y, torch.from_numpy(side @ points / dimension)[None])


def draw_labels(chances: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(N, d) labels from (N, d, CLASSES) chances, at each point at N evenly spread quantiles dealt to the clients.

    So the shares of the labels are within a few 1/N of the mean chances, and every label occurs at every point, without
    which there were no minimiser.
    """
    clients, points, _ = chances.shape
    order = rng.permuted(np.tile(np.arange(clients), (points, 1)), axis=1).T
    quantiles = (order + rng.random(points)) / clients
    return np.minimum((chances.cumsum(2) < quantiles[:, :, None]).sum(2), CLASSES - 1)


def _federation(points: Tensor, labels: Tensor) -> Federation:
    """Record j CLASSES + c is point j with label c: stored once, held by whoever has that label there."""
    dimension = len(points)
    return Federation(
        name="synthetic",
        x=points.float().repeat_interleave(CLASSES, 0),
        y=torch.arange(CLASSES).repeat(dimension),
        train=[torch.arange(dimension) * CLASSES + own for own in labels],
        validation=torch.empty(0, dtype=torch.int64),
        local_test=[torch.empty(0, dtype=torch.int64)] * len(labels),
        test_x=points[:1].float(),
        test_y=torch.zeros(1, dtype=torch.int64),
        classes=CLASSES,
    )

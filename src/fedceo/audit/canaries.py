"""Canaries: updates that are sent or not by the toss of a coin, and how well a view tells one from the other.

A mechanism that promises mu (the Gaussian mechanism's sensitivity over standard deviation) promises of every test for
the coin, with false positive rate a and false negative rate b, that Phi^-1(1 - a) - Phi^-1(b) <= mu. Upper bounds of
both rates therefore give a lower bound of mu.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from torch import Tensor

Floats: TypeAlias = npt.NDArray[np.float64]

OVERSHOOT = 1e3
"""R / C: how much longer than the clip a canary's update is."""
THRESHOLDS = 200
CAUTIOUS = 1e-6
"""Level at which thresholds are compared: at a laxer one a threshold far out may be best by luck."""


class Canaries:
    """m orthonormal directions u_j on disjoint random sets of coordinates.

    A direction is equally long in every tensor that it touches, however small, so that a fault in a bias counts like
    one in the largest layer. The rest of the coordinates holds one more direction v, for a part of the update that is
    sent whatever the coin.
    """

    def __init__(self, sizes: Sequence[int], clients: int, rng: np.random.Generator) -> None:
        """sizes: entries of each tensor of the model, D together; clients: K, of which min(K, D - 1) are canaries."""
        self.entries, self.clients = sum(sizes), clients
        self.count = max(1, min(clients, self.entries - 1))
        size = max(1, self.entries // (self.count + 1))
        order = rng.permutation(self.entries)
        places = np.sort(order[: self.count * size].reshape(self.count, size))  # so that memory is read in order
        tensors = np.repeat(np.arange(len(sizes)), sizes)[places]
        touched = np.stack([np.bincount(row, minlength=len(sizes)) for row in tensors])
        lengths = 1 / np.sqrt((touched > 0).sum(1, keepdims=True) * np.take_along_axis(touched, tensors, 1))
        self._places = torch.from_numpy(places)
        self._entries = torch.from_numpy(rng.choice([-1.0, 1.0], places.shape) * lengths)
        self._rest = torch.from_numpy(order[places.size :])

    def updates(self, coins: npt.NDArray[np.bool_], share: float, clip: float, like: Tensor) -> Tensor:
        """Updates, (K, D): R (a u_j + b v) for heads, C b v for tails, with a the share and a^2 + b^2 = 1.

        Clipped, the two differ by a C u_j; at share 1 they are R u_j and nothing. Type and device are those of `like`.
        """
        fallen = torch.from_numpy(coins)[:, None]
        sent = like.new_zeros(self.clients, self.entries)
        tossed = OVERSHOOT * clip * share * fallen * self._entries
        sent[: self.count].scatter_(1, self._places.to(like.device), tossed.to(like))
        if share < 1:
            entry = clip * math.sqrt((1 - share**2) / len(self._rest))
            sent[: self.count, self._rest.to(like.device)] = torch.where(fallen, OVERSHOOT * entry, entry).to(like)
        return sent

    def own(self, uploads: Tensor) -> Floats:
        """Scores <x_j, u_j> of uploads with D entries each, for as many j as there are canaries and uploads."""
        rows = torch.arange(min(self.count, len(uploads)))
        return self._along(uploads[rows[:, None], self._places[: len(rows)]])

    def peers(self, uploads: Tensor) -> Floats:
        """Scores <x_{j+1}, u_j>: the next client's upload along a direction in which it sent nothing."""
        following = (torch.arange(min(self.count, len(uploads))) + 1) % len(uploads)
        return self._along(uploads[following[:, None], self._places[: len(following)]])

    def common(self, vector: Tensor) -> Floats:
        """Scores <x, u_j> of one vector, (D,), for all j."""
        return self._along(vector[self._places])

    def one(self, vector: Tensor, j: int) -> float:
        """Score <x, u_j> of one vector, (D,), for one j."""
        return float((vector[self._places[j]].double().cpu() * self._entries[j]).sum())

    def _along(self, picked: Tensor) -> Floats:
        return (picked.double().cpu() * self._entries[: len(picked)]).sum(1).numpy()


@dataclass(frozen=True)
class Samples:
    """Scores of a view in two worlds: `out` without the canary (tails), `fallen` with it (heads)."""

    out: Floats
    fallen: Floats

    @property
    def smaller(self) -> int:
        """The number of scores in the world that has fewer."""
        return min(self.out.size, self.fallen.size)

    def mu_bound(self, alpha: float) -> float:
        """A lower bound of mu that is wrong with probability alpha at most.

        The threshold that does best on one half of the scores is judged on the other half.
        """
        if self.smaller < 4:
            return 0.0
        lowest, highest = np.quantile(np.concatenate([self.out, self.fallen]), [0.0, 1.0])
        if lowest == highest:
            return 0.0
        chosen = [np.sort(scores[::2]) for scores in (self.out, self.fallen)]
        grid = np.linspace(lowest, highest, THRESHOLDS)
        quantiles = np.quantile(np.concatenate(chosen), np.linspace(0, 1, THRESHOLDS))
        thresholds = np.sort(np.concatenate([grid, quantiles]))
        above = chosen[0].size - np.searchsorted(chosen[0], thresholds, side="right")
        below = np.searchsorted(chosen[1], thresholds, side="right")
        bounds = mu_from_errors(above, chosen[0].size, below, chosen[1].size, min(alpha, CAUTIOUS))
        # worlds that lie far apart leave many equally good thresholds, of which the middle one is the safest
        best = thresholds[np.flatnonzero(bounds == bounds.max())]
        threshold = best[len(best) // 2]
        out, fallen = self.out[1::2], self.fallen[1::2]
        positives, negatives = np.array([(out > threshold).sum()]), np.array([(fallen <= threshold).sum()])
        return max(0.0, float(mu_from_errors(positives, out.size, negatives, fallen.size, alpha)[0]))


def mu_from_errors(
    positives: npt.NDArray[np.int64], out: int, negatives: npt.NDArray[np.int64], fallen: int, alpha: float
) -> Floats:
    """Phi^-1(1 - FPR) - Phi^-1(FNR) at upper bounds of both rates, each of which holds up to alpha / 2."""
    false_positive = rate_upper(positives, out, alpha / 2)
    false_negative = rate_upper(negatives, fallen, alpha / 2)
    return stats.norm.isf(false_positive) - stats.norm.ppf(false_negative)


def rate_upper(errors: npt.NDArray[np.int64], trials: int, alpha: float) -> Floats:
    """Clopper and Pearson's one-sided upper bound of a rate, of which `errors` in `trials` were seen."""
    errors = np.asarray(errors)
    bound = stats.beta.isf(alpha, errors + 1, np.maximum(trials - errors, 1))
    return np.where(errors < trials, bound, 1.0)


def sure_bound(mu: float, scores: int, alpha: float) -> float:
    """The lower bound of mu that so many scores in each world almost surely give for a Gaussian mechanism at mu.

    Both kinds of errors are taken to be three standard deviations more frequent than they are on average.
    """
    judged = scores // 2
    if judged == 0:
        return 0.0
    mean = judged * float(stats.norm.sf(mu / 2))
    errors = np.array([min(judged, math.ceil(mean + 3 * math.sqrt(mean)))])
    return float(mu_from_errors(errors, judged, errors, judged, alpha)[0])


class Scores:
    """Scores by view, with the coins that are to be guessed from them."""

    def __init__(self) -> None:
        self._scores: dict[str, list[Floats]] = {}
        self._coins: dict[str, list[npt.NDArray[np.bool_]]] = {}

    def add(self, view: str, scores: Floats, coins: npt.NDArray[np.bool_]) -> None:
        self._scores.setdefault(view, []).append(scores)
        self._coins.setdefault(view, []).append(coins)

    def samples(self, view: str, rng: np.random.Generator) -> Samples:
        """A view's scores in random order, so that both halves hold every client and round."""
        if view not in self._scores:
            return Samples(np.empty(0), np.empty(0))
        scores, coins = np.concatenate(self._scores[view]), np.concatenate(self._coins[view])
        order = rng.permutation(scores.size)
        scores, coins = scores[order], coins[order]
        return Samples(scores[~coins], scores[coins])

"""Noise that is correlated over rounds, taken apart again: w_t = sum of c_j z_(t-j), which must be independent.

A client's update in round s is in C x + w along the s-th column of C, the rows of the b rounds from s on. Whoever knows
all else weighs these rows with the column and has the update in noise of one standard deviation. Windows of b rounds
that do not overlap have independent noise. With one coefficient, 1, rows and windows are single rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedceo.audit.findings import Finding, Floats

Coins = npt.NDArray[np.bool_]


class Whitening:
    """The noise w of one run after another, from the noise z that was seen in its rounds."""

    def __init__(self, coefficients: tuple[float, ...]) -> None:
        self._coefficients = coefficients
        self._run = 0
        self._earlier: dict[int, Floats] = {}

    def whiten(self, row: Floats, run: int, round_: int) -> Floats:
        """w_t from z_t; a round has no part in it that was not played, or that no longer mattered when one was."""
        if run != self._run:
            self._run, self._earlier = run, {}
        bands = len(self._coefficients)
        before = {t: z for t, z in self._earlier.items() if 0 < round_ - t < bands}
        self._earlier = {t: z for t, z in before.items() if round_ + 1 - t < bands} | {round_: row}
        whitened: Floats = self._coefficients[0] * row
        for t, z in before.items():
            whitened = whitened + self._coefficients[round_ - t] * z
        return whitened


@dataclass
class _Window:
    """The rounds that an update of one round shows in.

    Attributes:
        first: its round.
        sent: (m,) what was sent along each canary, in units of the clip.
        coins: those of the first canaries.
        noise: (m,) the sum of the rounds' noise, each with its coefficient.
        square: the sum of the squared coefficients.
    """

    first: int
    sent: Floats
    coins: Coins
    noise: Floats
    square: float = 0.0


class Windows:
    """Scores of canaries in windows of b rounds: what was sent, in noise of one standard deviation."""

    def __init__(self, coefficients: tuple[float, ...], closed: Callable[[Floats, Floats, Coins], None]) -> None:
        """closed: is given (m,) scores of a window, (m,) what of them was sent, and the coins."""
        self._coefficients, self._closed = coefficients, closed
        self._whitening = Whitening(coefficients)
        self._run = 0
        self._window: _Window | None = None

    def add(self, scores: Floats, sent: Floats, coins: Coins, round_: int) -> None:
        """One round: (m,) scores along all canaries, (m,) what of them was sent, the coins of those that were there."""
        noise = self._whitening.whiten(scores - sent, self._run, round_)
        if self._window is not None and round_ - self._window.first >= len(self._coefficients):
            self.close()
        if self._window is None:
            self._window = _Window(round_, sent, coins, np.zeros_like(scores))
        weight = self._coefficients[round_ - self._window.first]
        self._window.noise += weight * noise
        self._window.square += weight**2

    def begin(self) -> None:
        """Another run follows."""
        self.close()
        self._run += 1

    def close(self) -> None:
        """Score the window that is open."""
        window, self._window = self._window, None
        if window is not None:
            length = window.square**0.5
            self._closed(length * window.sent + window.noise / length, length * window.sent, window.coins)


def column_findings(coefficients: tuple[float, ...], groups: int) -> list[Finding]:
    """Are columns of C no longer than 1, and those of two rounds of a client orthogonal?"""
    length = float(np.linalg.norm(coefficients))
    return [
        Finding("column length", length <= 1 + 1e-9, length, "at most 1, so that an update counts once"),
        Finding("bands", len(coefficients) <= groups, float(len(coefficients)), f"at most the {groups} groups"),
    ]

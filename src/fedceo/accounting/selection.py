"""The epsilon of a study: a random number of runs, of which the one with the best score is released (D19).

Papernot and Steinke 2022. Whoever sees the chosen run alone is promised little less than by one run; whoever sees all
of them, such as a participant or the server, is promised what as many runs add up to.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import optimize

from fedceo.accounting import reasons
from fedceo.accounting.plan import Plan
from fedceo.accounting.renyi import LEFT_OUT, ORDERS, Curve, epsilon_at, gaussian_curve, log_delta_at
from fedceo.accounting.rows import LITTLE, Row, account, divergence
from fedceo.accounting.trials import Trials

KEPT = 1e-3
"""The fraction of delta that is kept for what curves leave out."""
LARGEST_EPSILON = 1e5
MOST_COUNTS = 1000
"""Numbers of trials that are looked at one by one."""
SEES_THE_CHOSEN = ("outsider",)
"""Observers who see the chosen trial and no other; all others see every trial while it is trained."""
REPEAT_AND_SELECT = "Renyi, repeat and select"
ALL_COMPOSED = "Renyi, all trials composed"


@dataclass(frozen=True)
class StudyRow:
    """The promise to one observer of a study.

    Attributes:
        observer, unit, adjacency, delta: as in a `Row`.
        epsilon_run: the epsilon of one trial, if it were the only one and settings had been fixed beforehand.
        epsilon: the epsilon of the whole study; None without a guarantee.
        accountant, assumption: what computed it, and what must hold or why there is none.
    """

    observer: str
    unit: str
    adjacency: str
    delta: float
    epsilon_run: float | None
    epsilon: float | None
    accountant: str
    assumption: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Score:
    """The score that the best trial is chosen by.

    Attributes:
        mu: how far one client (or record) moves the score, in standard deviations of the score's noise; zero where
            the records that it is measured on are declared public.
    """

    mu: float = 0.0

    @property
    def is_public(self) -> bool:
        return self.mu == 0


def study_rows(plans: Sequence[Plan], trials: Trials, score: Score, discarded: int = 0) -> list[StudyRow]:
    """One row for each observer.

    Args:
        plans: the plans of all settings that a trial may be drawn with.
        discarded: trials that were cut short and begun anew, which only those who see every trial have seen.
    """
    firsts: dict[str, list[Row]] = {}
    for plan in plans:
        seen: set[str] = set()
        for row in account(plan):
            if row.observer != "paper" and row.observer not in seen:
                firsts.setdefault(row.observer, []).append(row)
                seen.add(row.observer)
    complete = (rows for rows in firsts.values() if len(rows) == len(plans))
    return [_row(rows, plans, trials, score, discarded) for rows in complete]


def _row(rows: Sequence[Row], plans: Sequence[Plan], trials: Trials, score: Score, discarded: int) -> StudyRow:
    observer, delta = rows[0].observer, min(plan.delta for plan in plans)
    without = next((row for row in rows if row.epsilon is None), None)
    of_run = None if without is not None else max(row.epsilon or 0.0 for row in rows)
    curves = [divergence(plan, observer) for plan in plans] if without is None else []
    known = [curve for curve in curves if curve is not None]
    epsilon, accountant = None, reasons.NONE
    if without is not None:
        words = without.assumption
    elif observer == "server" and not score.is_public:
        words = reasons.SERVER_NOISES_SCORES
    elif len(known) < len(plans):
        words = reasons.NO_CURVE
    else:
        curve = np.maximum.reduce(known) + gaussian_curve(score.mu)
        found, accountant, words = _promise(curve, trials, delta, observer, discarded)
        # rows of records count a number of participations that is hardly ever exceeded, divergences their draw
        epsilon = max(found, of_run or 0.0) if math.isfinite(found) else None
        if epsilon is None:
            words = reasons.joined(words, reasons.NO_FINITE_EPSILON)
        elif epsilon > LITTLE:
            words = reasons.joined(words, reasons.means_little(LITTLE))
    return StudyRow(observer, rows[0].unit, rows[0].adjacency, delta, of_run, epsilon, accountant, words)


def _promise(curve: Curve, trials: Trials, delta: float, observer: str, discarded: int) -> tuple[float, str, str]:
    """Epsilon, what computed it, and what the observer sees."""
    if observer not in SEES_THE_CHOSEN:
        return composed_epsilon(curve, trials, delta, discarded), ALL_COMPOSED, reasons.SEES_ALL_TRIALS
    selected, composed = selected_epsilon(curve, trials, delta), composed_epsilon(curve, trials, delta)
    # the chosen trial is a function of all of them, which for very even numbers of trials is the better bound
    accountant = REPEAT_AND_SELECT if selected <= composed else ALL_COMPOSED
    return min(selected, composed), accountant, reasons.SEES_CHOSEN


def selected_curve(curve: Curve, trials: Trials) -> Curve:
    """Divergences of the best of a random number of trials, each of which has the given ones (D19)."""
    theta = ORDERS - 1
    if trials.is_poisson:
        # at e^epsilon = 1 + 1/(alpha - 1) the theorem wants the delta of one trial
        deltas = np.array([math.exp(float(log_delta_at(curve, math.log1p(1 / t)))) for t in theta])
        best = math.log(trials.mean) + theta * (curve + trials.mean * deltas)
        return np.logaddexp(best, -trials.mean) / theta  # with no trial at all both worlds agree
    if trials.gamma == 1:
        return curve
    odds = float(np.min((1 - 1 / ORDERS) * curve - math.log(trials.gamma) / ORDERS))
    return curve + (1 + trials.eta) * odds + math.log(trials.mean) / theta


def selected_epsilon(curve: Curve, trials: Trials, delta: float) -> float:
    """The epsilon of the best of a random number of trials, where nothing else is seen."""
    return _kept_for_rest(epsilon_at(selected_curve(curve, trials), (1 - KEPT) * delta), trials, delta)


def composed_epsilon(curve: Curve, trials: Trials, delta: float, further: int = 0) -> float:
    """The epsilon of all trials together, and as many further ones, for whoever sees each of them and their number.

    Neighbouring numbers of trials are taken together, at the largest of them.
    """
    last = len(trials.probabilities) - 1
    counts = np.unique(np.rint(np.geomspace(1, last, MOST_COUNTS)).astype(np.int64))
    weights = np.add.reduceat(trials.probabilities, np.concatenate([[1], counts[:-1] + 1]))
    curves = (counts[:, None] + further) * curve
    none_at_all = trials.probabilities[0]

    def excess(epsilon: float) -> float:
        exposed = float(weights @ np.exp(log_delta_at(curves, epsilon)))
        if further:
            exposed += none_at_all * math.exp(float(log_delta_at(further * curve, epsilon)))
        return math.log(max(exposed, 1e-300)) - math.log((1 - KEPT) * delta)

    if excess(0.0) <= 0:
        return 0.0
    if excess(LARGEST_EPSILON) > 0:
        return math.inf
    root = optimize.brentq(excess, 0.0, LARGEST_EPSILON, rtol=1e-6)
    return _kept_for_rest(float(root) * (1 + 1e-5), trials, delta, further)


def _kept_for_rest(epsilon: float, trials: Trials, delta: float, further: int = 0) -> float:
    """Epsilon, or infinity where what curves leave out might take more than is kept for it."""
    rest = LEFT_OUT * (trials.mean + further) * (1 + math.exp(min(epsilon, 700.0)))
    return epsilon if rest <= KEPT * delta else math.inf

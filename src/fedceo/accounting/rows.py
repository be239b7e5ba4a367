"""The rows of a run: one for each observer, with its epsilon and what that rests on.

    rows = account(Plan(clients=100, cohort=10, rounds=300, noise_multiplier=1.0, delta=1e-5, mechanism="distributed"))

One epsilon for everybody does not exist. An outsider sees averages and not who was in them; a participant also knows
its own share of the noise; the server sees each upload; a FedCEO client receives a personal model made from the
stack of uploads. An epsilon of None means that nothing can be promised, and the row says why.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedceo.accounting import reasons
from fedceo.accounting.observers.base import VIEWS, Answer, View
from fedceo.accounting.plan import AS_PLANNED, SMALLEST_DELTA, Plan, Question, Realised
from fedceo.accounting.renyi import Curve
from fedceo.errors import UsageError

OBSERVERS = ("outsider", "participant", "server", "client")
"""The order of the observers' rows; observers that others register come after them."""
LITTLE = 20.0
"""The epsilon above which a row says that it means little."""


@dataclass(frozen=True)
class Row:
    """The promise to one observer: epsilon at delta, or None where nothing can be promised.

    Attributes:
        observer: outsider | participant | server | client | paper, or another observer that has a view.
        mechanism: the regime that the row belongs to.
        unit: what is protected: user (a whole client) or record.
        adjacency: which two data sets must look alike.
        sampling: the sampling that epsilon profits from: fixed | poisson | none.
        epsilon: None without a guarantee.
        delta: as asked for.
        accountant: the method that computed epsilon.
        assumption: in words, what must hold, or why there is no epsilon.
    """

    observer: str
    mechanism: str
    unit: str
    adjacency: str
    sampling: str
    epsilon: float | None
    delta: float
    accountant: str
    assumption: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def account(plan: Plan, realised: Realised = AS_PLANNED) -> list[Row]:
    """The answer for each observer, and further rows: other counts of participations, the paper's closed form."""
    question = Question(plan, realised)
    supported = [(view, observer) for view, observer in _views() if view.supports(question, observer)]
    return [_row(plan, observer, view.answer(question, observer)) for view, observer in supported]


def answer(plan: Plan, observer: str, realised: Realised = AS_PLANNED) -> Answer:
    """The answer of the observer's first row."""
    question = Question(plan, realised)
    return _first_view(question, observer).answer(question, observer)


def divergence(plan: Plan, observer: str) -> Curve | None:
    """Renyi divergences of the plan, which hold at every delta, by the view of the observer's first row.

    What views leave out as improbable has a probability of at most `renyi.LEFT_OUT`.
    """
    question = Question(replace(plan, delta=SMALLEST_DELTA))
    return _first_view(question, observer).divergence(question, observer)


def check_observer(plan: Plan, observer: str) -> None:
    """Refuse an observer who has no row for such a plan."""
    _first_view(Question(plan), observer)


def _first_view(question: Question, observer: str) -> View:
    views = [view for view, name in _views() if name == observer and view.position == 0]
    if not views:
        known = dict.fromkeys(name for view, name in _views() if view.position == 0)
        raise UsageError(f"observer: {observer!r}, expected one of {', '.join(known)}")
    for view in views:
        if view.supports(question, observer):
            return view
    if observer == "client":
        raise UsageError(
            'observer: "client" needs personal models, and none are released; expected outsider, participant or server'
        )
    raise UsageError(f'observer: "{observer}" has no row for such a run')


def _views() -> list[tuple[View, str]]:
    """Every view with every observer that has it, in the order of their rows."""

    def place(found: tuple[View, str]) -> tuple[int, int]:
        view, observer = found
        return view.position, OBSERVERS.index(observer) if observer in OBSERVERS else len(OBSERVERS)

    return sorted(((view(), observer) for view in VIEWS.values() for observer in view.observers), key=place)


def _row(plan: Plan, observer: str, found: Answer) -> Row:
    epsilon, assumption = found.epsilon, found.assumption
    if epsilon is not None and not math.isfinite(epsilon):
        epsilon, assumption = None, reasons.joined(assumption, reasons.NO_FINITE_EPSILON)
    if epsilon is not None and epsilon > LITTLE:
        assumption = reasons.joined(assumption, reasons.means_little(LITTLE))
    return Row(
        observer=observer,
        mechanism=plan.mechanism,
        unit=found.unit,
        adjacency=plan.adjacency,
        sampling=found.sampling,
        epsilon=epsilon,
        delta=plan.delta,
        accountant=found.accountant,
        assumption=assumption,
    )

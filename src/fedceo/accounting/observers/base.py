"""The seam between the accountant and its views.

@VIEWS.register("last model", "the last average and nothing before it")
class LastModel(View):
    observers = ("reader of the last model",)

    def supports(self, question: Question, observer: str) -> bool:
        return question.plan.protects_clients and question.plan.release == "average"

    def answer(self, question: Question, observer: str) -> Answer: ...
"""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from fedceo.accounting.plan import Question
from fedceo.accounting.renyi import Curve
from fedceo.experiment.registry import Registry


class Answer(NamedTuple):
    """An epsilon and what it rests on; it is infinite where more noise would help, None where no noise would."""

    epsilon: float | None
    accountant: str
    assumption: str
    sampling: str = "none"
    unit: str = "user"


class View(ABC):
    """A view of some kind of run, which one or more observers have.

    Attributes:
        observers: the observers who have this view, by the names that their rows carry.
        position: 0 for a view that answers for its observers, of whom each has one such view in any run. A larger
            position makes further rows, which come after all answers, in the order of positions.
    """

    observers: ClassVar[tuple[str, ...]]
    position: ClassVar[int] = 0

    @abstractmethod
    def supports(self, question: Question, observer: str) -> bool:
        """Whether one of the view's observers has a row of it in such a run."""

    @abstractmethod
    def answer(self, question: Question, observer: str) -> Answer:
        """The epsilon that one of the view's observers is promised; asked only of a run that is supported."""

    def divergence(self, question: Question, observer: str) -> Curve | None:
        """Renyi divergences of the run as it is planned, which a study of many runs is accounted by; None: unknown."""
        return None


VIEWS: Registry[type[View]] = Registry("view", "fedceo.accounting.observers")

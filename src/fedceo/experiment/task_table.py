"""The table [task] of the experiment file: what is learnt."""

from typing import Self

from pydantic import model_validator

from fedceo.experiment.base import Section
from fedceo.experiment.plugins import is_own
from fedceo.experiment.registry import TASKS


class Task(Section):
    name: str = "classification"
    """What is learnt, a registered task (`fedceo list`)."""
    loss: str | None = None
    """A loss of your own in the place of the task's, "module:callable": a function of outputs and targets, (records,
    ...) both, to (records,) losses."""
    metrics: list[str] | None = None
    """What models are measured by: names of metrics that fit the task, or "module:callable", functions of outputs and
    targets to a number. Rounds and settings are chosen by the first. Left out: the task's own."""

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        if not self.model_fields_set:
            return self
        if self.name not in TASKS:
            raise ValueError(TASKS.unknown(self.name))
        known = (*TASKS[self.name].standard_metrics, *TASKS[self.name].other_metrics)
        wrong = [metric for metric in self.metrics or known if not is_own(metric) and metric not in known]
        if wrong or self.metrics == []:
            given = wrong[0] if wrong else "none"
            raise ValueError(f'metrics: {given!r}, expected some of {", ".join(known)} or "module:callable"')
        if twice := next((each for each in self.metrics or [] if (self.metrics or []).count(each) > 1), None):
            raise ValueError(f"metrics: {twice!r} is there twice, expected every metric once")
        if self.loss is not None and not is_own(self.loss):
            raise ValueError(f'loss: {self.loss!r}, expected "module:callable"')
        return self

    @property
    def measures_classes(self) -> bool:
        """Whether models are measured by nothing but their accuracy, which can be told class by class."""
        kind = TASKS[self.name]
        return kind.has_classes and (self.metrics is None or tuple(self.metrics) == kind.standard_metrics)

    @property
    def is_standard(self) -> bool:
        """Whether nothing differs from what there was before there were tasks."""
        return self == Task()

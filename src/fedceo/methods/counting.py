"""Counts of their own records that clients release for a method: what they cannot be combined with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedceo.experiment.registry import TASKS

if TYPE_CHECKING:
    from fedceo.experiment.file import Experiment


def check_counts(experiment: Experiment, asking: str, counts: str) -> None:
    """Refuse, in one line, experiments in which counts cannot be released as the accountant takes them to be.

    Args:
        asking: what asks for them, as in 'method "label-prior"'.
        counts: what is counted.
    """
    privacy, task = experiment.privacy, experiment.task.name
    if experiment.mechanism.is_user_level:
        raise ValueError(
            f'privacy.mechanism: "{privacy.mechanism}" hides a whole client, whose {counts} {asking} releases; '
            'expected "record" or "none"'
        )
    if privacy.randomness == "system" and experiment.mechanism.adds_noise:
        raise ValueError(
            f'privacy.randomness: "system" draws the noise of {counts} anew when a run is resumed, which shows more of '
            f'them; expected "seeded" for {asking}'
        )
    if not TASKS[task].has_classes:
        raise ValueError(f'task.name: "{task}" has no classes, and {asking} counts labels; expected "classification"')

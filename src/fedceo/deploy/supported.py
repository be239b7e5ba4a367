"""Experiments that a federation of nodes supports, and the form in which one is deployed."""

from fedceo.errors import UsageError
from fedceo.experiment.file import Experiment
from fedceo.simulation.preparing import with_absolute_places
from fedceo.simulation.spending import with_solved_noise


def check_supported(experiment: Experiment) -> None:
    """Refuse, in one line, what nodes cannot do or what would not be private there."""
    privacy, method = experiment.privacy, experiment.method
    if not experiment.mechanism.noise_in_shares:
        raise UsageError(
            f'privacy.mechanism: "{privacy.mechanism}", expected "distributed": in a federation each node adds its '
            "share of the noise before anything leaves it"
        )
    if privacy.randomness != "system":
        raise UsageError(
            f'privacy.randomness: "{privacy.randomness}", expected "system": a deployment draws its noise from the '
            "operating system"
        )
    if privacy.clipping == "adaptive":
        raise UsageError('privacy.clipping: "adaptive", expected "flat" or "per_layer": nodes send no counts')
    if method.refused_on_nodes is not None:
        raise UsageError(f'method.name: "{method.name}" {method.refused_on_nodes}')
    if not experiment.task.is_standard:
        raise UsageError(
            f'task: "{experiment.task.name}", expected to be left out: a server tests uploads by the loss of labels'
        )
    if experiment.cohort.dropout:
        raise UsageError(
            f"cohort.dropout: {experiment.cohort.dropout:g}, expected 0: it simulates absence, and nodes are absent "
            "by themselves"
        )
    if experiment.record.every is not None:
        raise UsageError("record.every: records models before noise, which no server ever has; leave it out")
    if experiment.data.clients is None:
        raise UsageError("data.clients: missing; a federation must know how many clients there are")


def for_deployment(experiment: Experiment) -> Experiment:
    """The same experiment with the operating system's noise, its noise multiplier solved, and a checkpoint a round.

    A round that is taken again after a crash is spent twice, so a deployment saves after each. The multiplier is solved
    once, here: nodes read it from the file and start a new process for every message.
    """
    system = with_absolute_places(experiment).model_copy(
        update={
            "privacy": experiment.privacy.model_copy(update={"randomness": "system"}),
            "checkpoint": experiment.checkpoint.model_copy(update={"every": 1}),
        }
    )
    check_supported(system)
    target = system.privacy.target_epsilon
    if target is None:
        return system
    assert system.data.clients is not None
    if system.privacy.min_reports is None and system.privacy.observer != "server":  # who sees each upload by itself
        raise UsageError(
            "privacy.target_epsilon: noise goes missing with nodes that are absent, expected privacy.min_reports, for "
            "which shares are then sized"
        )
    remark = f"noise multiplier solved for an epsilon of {target:g} of the {system.privacy.observer}"
    note = f"{system.note}; {remark}" if system.note else remark
    return with_solved_noise(system, [1] * system.data.clients).model_copy(update={"note": note})

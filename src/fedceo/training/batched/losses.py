"""The steps between a chain's forward pass, its backward pass and the sums of gradients: losses and clipping."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from fedceo.tasks import Task
from fedceo.training import per_example
from fedceo.training.batched.cohort import Batch

Loss = Callable[[Tensor, Batch, bool], tuple[Tensor, Tensor]]
"""A function like `cross_entropy`."""


def loss_of(task: Task) -> Loss | None:
    """The loss of a task with its gradient, or None where nobody has written that out."""
    if task.is_cross_entropy:
        return cross_entropy
    return partial(_derived, task) if task.has_derivative else None


def _derived(task: Task, outputs: Tensor, batch: Batch, mean: bool) -> tuple[Tensor, Tensor]:
    """See cross_entropy."""
    each, dy = task.derivative(outputs, batch.labels)
    fractions = batch.fractions
    return (each * fractions).sum(1), dy * fractions[..., None] if mean else dy


def cross_entropy(logits: Tensor, batch: Batch, mean: bool) -> tuple[Tensor, Tensor]:
    """The loss of K clients and its gradient.

    Args:
        logits: (K, B, classes).
        mean: whether the gradient is that of each client's mean loss, or of every record's own loss.

    Returns:
        (K,) mean loss of each client, and (K, B, classes) the gradient with respect to the logits.
    """
    fractions = batch.fractions
    axis = (
        1 if logits.mT.is_contiguous() else 2
    )  # a CPU does ten numbers of neighbours at once, one record's one by one
    places = batch.labels.unsqueeze(axis)
    logs = (logits.mT if axis == 1 else logits).log_softmax(axis)
    losses = -(logs.gather(axis, places).squeeze(axis) * fractions).sum(1)
    dy = logs.exp_().scatter_(axis, places, -1.0, reduce="add")
    if mean:
        dy.mul_(fractions.unsqueeze(axis))
    return losses, dy.mT if axis == 1 else dy


def clip_factors(squares: Sequence[Tensor], batch: Batch, clips: Tensor) -> Tensor:
    """(K, B) factors of the records' gradients, given the (K, B) squared norms over each block's parameters.

    clips: (K,) largest norm of a record's gradient, by client.
    """
    return per_example.clip_factors(squares, batch.present, clips[:, None])

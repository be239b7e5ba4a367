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
    labels, fractions = batch.labels, batch.fractions
    logits = logits - logits.amax(2, keepdim=True)
    powers = logits.exp()
    totals = powers.sum(2, keepdim=True)
    losses = ((totals.log() - logits.gather(2, labels[..., None]))[..., 0] * fractions).sum(1)
    dy = powers.div_(totals).scatter_add_(2, labels[..., None], powers.new_full((), -1.0).expand(*labels.shape, 1))
    return losses, dy.mul_(fractions[..., None]) if mean else dy


def clip_factors(squares: Sequence[Tensor], batch: Batch, clips: Tensor) -> Tensor:
    """(K, B) factors of the records' gradients, given the (K, B) squared norms over each block's parameters.

    clips: (K,) largest norm of a record's gradient, by client.
    """
    return per_example.clip_factors(squares, batch.present, clips[:, None])

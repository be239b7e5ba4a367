"""Plain SGD without kernels of a GPU: models train where they are handed back, and no gradient waits to be applied.

A layer takes its step as soon as its gradient is known, on the way back through the chain: nothing is written that is
read only once. What a step needs beside records is made for all steps of the round at once, since on a CPU a step of a
small model is made of calls, and threads that train clients wait for each other between calls.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.batched.chain import Chain
from fedceo.training.batched.cohort import Batch, Call, pad
from fedceo.training.context import TrainingContext


def is_bare(calls: Sequence[Call]) -> bool:
    """Whether every step is w -= eta * gradient, with one eta for all, of those parameters that train."""
    return calls[0].work.is_bare and len({call.work.learning_rate for call in calls}) == 1


def descend(chain: Chain, calls: Sequence[Call], read: TrainingContext, out: Weights) -> Tensor:
    """Train the clients of the calls.

    Args:
        read: the context that records are read from.
        out: name -> (K, ...), the clients' weights in the end.

    Returns:
        (K,) mean loss of each client over its steps.
    """
    for name, w in out.items():
        torch.cat([call.starts[name] for call in calls], out=w)
    own, given = [], []
    for call in calls:
        mine = call.context.batches(call.clients, call.round_, call.work)
        own += mine
        given += call.context.masks(call.clients, call.round_, call.work, mine) or []
    batches = pad(own, -1, (1, 1), len(own))
    masks = pad(given, 0.0, (1, 1), len(own)).unbind() if given else [None] * len(batches)
    present = batches >= 0
    counts = present.sum(2)
    shares = present / counts.clamp_min(1)[..., None].to(read.dtype)
    batches = torch.where(present, batches, read.blank)
    losses = torch.zeros_like(shares[0, :, 0])
    # a client that is done has a batch of no records, whose gradient is zero
    of_steps = zip(batches, read.labels[batches], counts, masks, shares, strict=True)
    for indices, labels, count, mask, share in of_steps:
        batch = Batch(read.inputs_of(indices), labels, count, mask, share)
        losses += chain.descend(out, batch, calls[0].work.learning_rate, calls[0].work.only)[0]
    return losses / losses.new_tensor([len(indices) for indices in own])

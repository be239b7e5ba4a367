"""The buffers of a cohort in training: K models as the rows of one matrix, their batches and their progress."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.context import TrainingContext
from fedceo.training.noise import has_kernels
from fedceo.training.terms import needs_starts
from fedceo.training.work import Work

ROW = (4, 16)
"""A row is padded to a multiple of this, on a CPU and on a GPU: kernels copy 16 bytes at once where they know it."""
GRAIN = (64, 16)
"""On a GPU steps and batches are padded to multiples of these, so that few captured steps serve all rounds."""
CLIENTS_GRAIN = 8
"""A large cohort is padded to a multiple of this where its steps are captured, with clients that take no step; from 256
clients on to eight sizes between two powers of two: Poisson cohorts differ from round to round, and each size has a
capture of its own."""
LARGE = 32
"""Clients above which a cohort is large: in a smaller one a few rows more would be felt."""


class Places(NamedTuple):
    """Where the records of a batch lie among all records, for a first block that reads them there.

    Attributes:
        rows: (K, B) the row of each slot's record.
        squares: (n,) the squared norm of every record.
    """

    rows: Tensor
    squares: Tensor


class Batch(NamedTuple):
    """One batch of each of K clients.

    Attributes:
        x: (K, B, *shape), the first counts[k] records of client k real, the rest zeros; with `places` all records.
        labels: (K, B), or (K, B, ...) other targets.
        counts: (K,) records in each client's batch.
        mask: (K, B, units) or none.
        shares: the `fractions`, where they are known already.
        places: where in x the records are, if they are not copied.
        squares: (K, B) the squared norms of the records, where they are known already.
    """

    x: Tensor
    labels: Tensor
    counts: Tensor
    mask: Tensor | None = None
    shares: Tensor | None = None
    places: Places | None = None
    squares: Tensor | None = None

    @property
    def present(self) -> Tensor:
        """(K, B) 1 for records, 0 for filling."""
        return (torch.arange(self.x.shape[1], device=self.x.device) < self.counts[:, None]).to(self.x.dtype)

    @property
    def fractions(self) -> Tensor:
        """(K, B) the part of each record in its client's mean: 1 / count, and 0 for filling."""
        return self.present / self.counts.clamp_min(1)[:, None] if self.shares is None else self.shares


@dataclass(frozen=True)
class Call:
    """A cohort that waits to be trained: the arguments of Trainer.train and the context of their run."""

    context: TrainingContext
    starts: Weights
    clients: Sequence[int]
    round_: int
    work: Work

    def part(self, first: int, last: int) -> "Call":
        """The same for the clients from `first` up to, but without, `last`."""
        return replace(
            self,
            starts={name: w[first:last] for name, w in self.starts.items()},
            clients=self.clients[first:last],
            work=self.work.of(slice(first, last)),
        )


@dataclass(frozen=True)
class Share:
    """The clients of one run in a cohort.

    Attributes:
        work: what they do; all shares of a cohort have works of one kind.
        starts: name -> (k, ...).
        batches: each client's, as TrainingContext.batches gives them.
        divisors: each client's expected batch size.
        masks: each client's dropout masks, as TrainingContext.masks gives them, or None.
        mask_keys: (k,) the keys of these masks where a kernel draws them, or None.
    """

    work: Work
    starts: Weights
    batches: Sequence[Tensor]
    divisors: Sequence[float]
    masks: Sequence[Tensor] | None = None
    mask_keys: Tensor | None = None


@dataclass
class Cohort:
    """The buffers that a step reads and writes, in place, so that a step can be captured and replayed.

    No two of them share memory; one that the Work does not need is None. The table in this package's docstring gives
    the shape and meaning of each.

    Attributes:
        shapes: name -> shape of one client's parameter.
        size: D, the parameters of a model.
        longest: the steps of the client that takes most.
    """

    shapes: dict[str, torch.Size]
    size: int
    weights: Tensor
    gradients: Tensor
    momenta: Tensor | None
    squares: Tensor | None
    starts: Tensor | None
    noised: Tensor | None
    shifts: Tensor | None
    batches: Tensor
    counts: Tensor
    masks: Tensor | None
    mask_keys: Tensor | None
    steps: Tensor
    longest: int
    step: Tensor
    rates: Tensor
    clips: Tensor | None
    stds: Tensor | None
    divisors: Tensor
    keys: Tensor | None
    losses: Tensor

    @staticmethod
    def of(
        shares: Sequence["Share"],
        context: TrainingContext,
        keys: Tensor | None = None,
    ) -> "Cohort":
        """The buffers at the start of a round, the clients of each share after those of the one before.

        keys: (K,) of the noise, where it is a function of keys.
        """
        work, shapes = shares[0].work, {name: w.shape[1:] for name, w in shares[0].starts.items()}
        given = [batches for share in shares for batches in share.batches]
        size = sum(map(prod, shapes.values()))
        rows = padded(len(given), context)
        row = ROW[context.device.type == "cuda"]
        weights = torch.empty(rows, -(-size // row) * row, dtype=context.dtype, device=context.device)
        gradients = torch.empty_like(weights)  # a step writes all of them but what is set to zero here
        for buffer in (weights, gradients):
            buffer[:, size:], buffer[len(given) :] = 0, 0

        def write(out: Tensor, models: Sequence[Weights]) -> None:
            for name, view in named_views(out[: len(given)], shapes).items():
                for mine, model in zip(view.split([len(share.batches) for share in shares]), models, strict=True):
                    mine.copy_(model[name])

        write(weights, [share.starts for share in shares])
        starts = weights.clone() if needs_starts(work) else None
        if starts is not None and any(share.work.anchor for share in shares):
            write(starts, [share.work.anchor or share.starts for share in shares])
        shifts = None
        if work.shift is not None:
            shifts = torch.zeros_like(weights)
            write(shifts, [share.work.shift or {} for share in shares])
            shifts[: len(given)] /= shifts.new_tensor([len(indices) for indices in given])[:, None]
        grain = GRAIN if context.device.type == "cuda" else (1, 1)
        batches = pad(given, -1, grain, rows)
        masks = [mask for share in shares for mask in share.masks or ()]
        mask_keys = [share.mask_keys for share in shares if share.mask_keys is not None]
        steps = [len(indices) for indices in given]
        private = work.record is not None
        numbers = [
            (each.learning_rate, divisor, each.record.clip, each.record.noise_multiplier * each.record.clip)
            if each.record
            else (each.learning_rate, divisor)
            for each, divisor in ((share.work, divisor) for share in shares for divisor in share.divisors)
        ]
        filling = [(1.0,) * len(numbers[0])] * (rows - len(given))
        columns = [column.clone() for column in weights.new_tensor(numbers + filling).T]  # one transfer for all

        return Cohort(
            shapes=shapes,
            size=size,
            weights=weights,
            gradients=gradients,
            momenta=torch.zeros_like(weights) if work.momentum or work.is_adaptive else None,
            squares=torch.zeros_like(weights) if work.is_adaptive else None,
            starts=starts,
            noised=torch.zeros_like(weights) if work.ascent and work.record else None,
            shifts=shifts,
            batches=torch.where(batches >= 0, batches, context.blank),
            counts=(batches >= 0).sum(2),
            masks=pad(masks, 0.0, grain, rows) if masks else None,
            mask_keys=F.pad(torch.cat(mask_keys), (0, rows - len(given))) if mask_keys else None,
            steps=torch.tensor(steps + [0] * (rows - len(given)), device=context.device),
            longest=max(steps),
            step=torch.zeros(1, dtype=torch.int64, device=context.device),
            rates=columns[0],
            clips=columns[2] if private else None,
            stds=columns[3] if private else None,
            divisors=columns[1],
            keys=None if keys is None else F.pad(keys, (0, rows - len(given))),
            losses=weights.new_zeros(rows),
        )

    @cached_property
    def named(self) -> dict[str, Tensor]:
        """name -> (K, ...), views of `weights`."""
        return named_views(self.weights, self.shapes)

    @cached_property
    def named_gradients(self) -> dict[str, Tensor]:
        """name -> (K, ...), views of `gradients`."""
        return named_views(self.gradients, self.shapes)

    @cached_property
    def is_aligned(self) -> bool:
        """Whether every parameter, and every row of a matrix, begins at a multiple of 4 entries of its client's row."""
        *before, _ = (prod(shape) for shape in self.shapes.values())
        return all(size % 4 == 0 for size in before) and all(s[1] % 4 == 0 for s in self.shapes.values() if len(s) == 2)

    def batch(self, context: TrainingContext, in_place: bool = False, measured: bool = False) -> Batch:
        """The batch of the step to take.

        Args:
            in_place: on a GPU, without copies of its records.
            measured: on a CPU, with the squared norms of its records where all records are at hand.
        """
        if self.step.is_cpu:  # asking which step it is costs nothing here, and views no copies
            step = int(self.step)
            batches, counts, masks = self.batches[step], self.counts[step], self.masks
            squares = context.squares[batches] if measured and context.inputs is not None else None
            mask = None if masks is None else masks[step]
            return Batch(*context.records(batches), counts, mask, squares=squares)
        if has_kernels(context.device, context.dtype) and context.inputs is not None:
            from fedceo.training.cuda.records import gather

            return gather(self, context, in_place)
        x, labels = context.records(self.batches.index_select(0, self.step)[0])
        mask = None if self.masks is None else self.masks.index_select(0, self.step)[0]
        return Batch(x, labels, self.counts.index_select(0, self.step)[0], mask)


def named_views(rows: Tensor, shapes: dict[str, torch.Size]) -> dict[str, Tensor]:
    """Views of a (K, row) matrix: name -> (K, ...)."""
    views, first = {}, 0
    for name, shape in shapes.items():
        views[name] = rows[:, first : first + prod(shape)].view(len(rows), *shape)
        first += prod(shape)
    return views


def padded(clients: int, context: TrainingContext) -> int:
    """The rows of a cohort of so many clients."""
    if not has_kernels(context.device, context.dtype) or clients <= LARGE:
        return clients
    grain = max(CLIENTS_GRAIN, 2 ** (clients.bit_length() - 4))
    return -(-clients // grain) * grain


def pad(tensors: Sequence[Tensor], fill: float, grain: tuple[int, int], rows: int) -> Tensor:
    """Tensors (steps, batch, ...) as one (S, rows, B, ...), most steps and largest batch rounded up to the grain."""
    distinct = list({id(t): t for t in tensors}.values())
    if len(distinct) < len(tensors):  # runs of one seed share their batches: each is written once
        places = {id(t): place for place, t in enumerate(distinct)}
        of_rows = [places[id(t)] for t in tensors] + [len(distinct)] * (rows - len(tensors))
        return pad(distinct, fill, grain, len(distinct) + 1)[:, of_rows]
    steps, batch = (-(-max(t.shape[axis] for t in tensors) // grain[axis]) * grain[axis] for axis in (0, 1))
    first, alike = tensors[0], len({t.shape for t in tensors}) == 1
    if alike and (len(tensors), *first.shape[:2]) == (rows, steps, batch):
        return torch.stack(list(tensors), 1)
    out = torch.full((steps, rows, batch, *first.shape[2:]), fill, dtype=first.dtype, device=first.device)
    if alike:
        out[: len(first), : len(tensors), : first.shape[1]] = torch.stack(list(tensors), 1)
        return out
    for k, t in enumerate(tensors):
        out[: t.shape[0], k, : t.shape[1]] = t
    return out

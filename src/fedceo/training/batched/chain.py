"""Models that are a chain of blocks, whose gradients for K clients are computed by passes that know their way back.

tracing.py reads chains off models' code.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.batched.blocks import Block, Descends, Linear, Pass, ReadsInPlace, Receives, Stores
from fedceo.training.batched.cohort import Batch
from fedceo.training.batched.losses import Loss, clip_factors, cross_entropy
from fedceo.training.batched.products import AsProduct, Product
from fedceo.training.cuda.branches import Branch

Entry = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Chain:
    """A model as a chain of blocks.

    Attributes:
        blocks: the blocks from input to logits.
        shape: of a record.
        entry: the function of (K, B, ...) records that the first block takes the result of, or None for themselves.
        loss, clip_factors: the functions of losses.py, or those of cuda/losses.py.
        branch: where blocks' own gradients are worked on beside the backward pass, on a GPU.
    """

    blocks: tuple[Block, ...]
    shape: tuple[int, ...]
    entry: Entry | None = None
    loss: Loss = cross_entropy
    clip_factors: Callable[[Sequence[Tensor], Batch, Tensor], Tensor] = clip_factors
    branch: Branch | None = field(default=None, compare=False)

    @property
    def first_linear(self) -> Linear | None:
        """The first block, if it is a linear layer that takes the records as they are."""
        first = self.blocks[0]
        return first if isinstance(first, Linear) and self.entry is None else None

    def fused(self) -> "Chain":
        """The same chain on the kernels of a GPU."""
        from fedceo.training.cuda import blocks, losses  # only where there is Triton

        fused = blocks.fuse(self.blocks, self.shape)
        return Chain(fused, self.shape, self.entry, losses.cross_entropy, losses.clip_factors, Branch())

    def takes_whole(self, only: frozenset[str] | None) -> bool:
        """Whether every block trains with all of its parameters or with none; only: those that train, None for all."""
        blocks = (frozenset(block.names) for block in self.blocks)
        return only is None or all(names <= only or not names & only for names in blocks)

    def stored(self, inputs: Tensor) -> Tensor:
        """(n, *shape) records as the first block reads them fastest from memory."""
        first = self.blocks[0]
        return first.stored(inputs) if isinstance(first, Stores) else inputs

    def reads_in_place(self, shapes: Mapping[str, torch.Size]) -> bool:
        """Whether the first block, with parameters of these shapes, reads records where all of them lie."""
        first = self.blocks[0]
        return self.entry is None and isinstance(first, ReadsInPlace) and first.reads_in_place(shapes)

    def gradient(
        self,
        weights: Weights,
        batch: Batch,
        clips: Tensor | None,
        out: Weights,
        only: frozenset[str] | None = None,
        take: Callable[[Product], None] | None = None,
    ) -> Tensor:
        """Write each client's gradient to `out`: the mean over its records, or the sum of clipped ones.

        Args:
            weights: name -> (K, ...).
            clips: (K,) largest norm of a record's gradient, by client, or None for the plain mean.
            out: name -> (K, ...), overwritten.
            only: names of the parameters that train, whole layers; what is written for others means nothing.
            take: takes means that can be left as products, which are then not written; it is called when nothing that
                is still to come in the pass reads the layer's weights.

        Returns:
            (K,) mean loss of each client.
        """
        passes = self.forward(weights, batch)
        losses, dy = self.loss(passes[-1].y, batch, clips is None)
        wanted: list[Pass] = []
        squares: list[Tensor] = []

        def work_on(each: Pass, beside: bool) -> None:
            """Take the norms of a pass's own gradients where these are clipped, else sum them up."""
            wanted.append(each)
            with self._beside(beside):
                if clips is not None:
                    squares.append(each.squared_norms())
                elif take is not None and isinstance(each, AsProduct):
                    take(each.product(batch.counts))
                else:
                    each.sum_gradients(None, out)

        for i in reversed(range(len(passes))):
            each, counts = passes[i], trains(self.blocks[i], only)
            if early := isinstance(each, Receives):
                each.receive(dy)
                if counts:
                    work_on(each, beside=i > 0)
            dx = each.backward(dy, needs_dx=i > 0)
            if counts and not early:
                work_on(each, beside=i > 0)
            dy = dy if dx is None else dx
        self._join()
        if clips is not None:
            factors = self.clip_factors(squares[::-1], batch, clips)
            for each in sorted(wanted, key=lambda each: isinstance(each, AsProduct)):
                with self._beside(not isinstance(each, AsProduct)):
                    each.sum_gradients(factors, out)
            self._join()
        return losses

    def _beside(self, wanted: bool) -> AbstractContextManager[None]:
        return self.branch.beside() if wanted and self.branch else nullcontext()

    def _join(self) -> None:
        if self.branch:
            self.branch.join()

    def descend(
        self,
        weights: Weights,
        batch: Batch,
        rate: float,
        only: frozenset[str] | None = None,
        needs_dx: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """One step of plain SGD, in place.

        Args:
            only: names of the parameters that train, whole layers.
            needs_dx: whether the gradient is wanted with respect to what the first block takes.

        Returns:
            (K,) the mean losses before the step, and that gradient; anything where it is not wanted.
        """
        passes = self.forward(weights, batch)
        losses, dy = self.loss(passes[-1].y if passes else batch.x, batch, True)
        training = [trains(block, only) for block in self.blocks]
        first = 0 if needs_dx else training.index(True)  # nobody asks for gradients before it
        for i in reversed(range(first, len(passes))):
            each, further = passes[i], needs_dx or i > first
            if training[i]:
                assert isinstance(each, Descends), "only blocks without kernels of a GPU"
                dx = each.descend(dy, further, rate)
            else:
                dx = each.backward(dy, further)
            dy = dy if dx is None else dx
        return losses, dy

    def forward(self, weights: Weights, batch: Batch) -> list[Pass]:
        """The blocks' passes, the last of which has the logits."""
        x = batch.x if self.entry is None else self.entry(batch.x)
        passes: list[Pass] = []
        for block in self.blocks:
            passes.append(block.run(weights, x, batch))
            x = passes[-1].y
        return passes


def trains(block: Block, only: frozenset[str] | None) -> bool:
    """Whether a block is one of those that train; only: the names of their parameters, None for all."""
    return only is None or bool(only & {*block.names})

"""The batch of a step on a GPU, by one kernel, with its masks; torch would look up one thing after another.

A layer of few units takes as long as its records take to be read. Such a first layer reads them where all records lie:
a copy would be written once and read several times.
"""

from math import prod

import triton

from fedceo.training.batched.cohort import Batch, Cohort, Places
from fedceo.training.context import TrainingContext
from fedceo.training.cuda import row_kernels


def gather(cohort: Cohort, context: TrainingContext, in_place: bool) -> Batch:
    """The batch of the step to take, of records that lie on the device.

    in_place: leave records where they are, and say where.
    """
    inputs, labels, rows = context.inputs, context.labels, cohort.batches.shape[1:]
    assert inputs is not None
    x = cohort.batches.new_empty(rows) if in_place else inputs.new_empty(*rows, *inputs.shape[1:])
    y = labels.new_empty(rows)
    counts, mask, units, keep = cohort.counts.new_empty(rows[0]), None, 1, 1.0
    if cohort.mask_keys is not None:
        assert context.mask_shape is not None
        mask = inputs.new_empty(*rows, *context.mask_shape, dtype=context.dtype)
        units, keep = prod(context.mask_shape), context.keep
    row_kernels.gather_kernel[(prod(rows),)](
        inputs, labels, cohort.batches, cohort.counts, counts if mask is None else cohort.mask_keys, cohort.step,
        x, y, counts, x if mask is None else mask, rows[1], prod(inputs.shape[1:]), units,
        COPY=not in_place, MASK=mask is not None, KEEP=keep, TILE=1024,
        TILE_MASK=min(1024, triton.next_power_of_2(units)),
    )  # fmt: skip
    if in_place:
        return Batch(inputs, y, counts, mask, places=Places(x, context.squares))
    return Batch(x, y, counts, mask)

"""The batch of a step on a GPU, by one kernel, with its masks; torch would look up one thing after another."""

from math import prod

import triton

from fedceo.training.batched.cohort import Batch, Cohort
from fedceo.training.context import TrainingContext
from fedceo.training.cuda import row_kernels


def gather(cohort: Cohort, context: TrainingContext) -> Batch:
    """The batch of the step to take, of records that lie on the device."""
    inputs, labels, rows = context.inputs, context.labels, cohort.batches.shape[1:]
    assert inputs is not None
    x, y = inputs.new_empty(*rows, *inputs.shape[1:]), labels.new_empty(rows)
    counts, mask, units, keep = cohort.counts.new_empty(rows[0]), None, 1, 1.0
    if cohort.mask_keys is not None:
        assert context.mask_shape is not None
        mask = x.new_empty(*rows, *context.mask_shape, dtype=context.dtype)
        units, keep = prod(context.mask_shape), context.keep
    row_kernels.gather_kernel[(prod(rows),)](
        inputs, labels, cohort.batches, cohort.counts, counts if mask is None else cohort.mask_keys, cohort.step,
        x, y, counts, x if mask is None else mask, rows[1], prod(inputs.shape[1:]), units,
        MASK=mask is not None, KEEP=keep, TILE=1024, TILE_MASK=min(1024, triton.next_power_of_2(units)),
    )  # fmt: skip
    return Batch(x, y, counts, mask)

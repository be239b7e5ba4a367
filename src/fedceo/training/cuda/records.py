"""The batch of a step on a GPU, copied by one kernel; torch would look up records, labels, counts and masks in turn."""

from math import prod

from torch import Tensor

from fedceo.training.batched.cohort import Batch, Cohort
from fedceo.training.cuda import row_kernels


def gather(cohort: Cohort, inputs: Tensor, labels: Tensor) -> Batch:
    """The batch of the step to take; inputs, labels: (n, *shape) and (n,), of all records."""
    rows, masks = cohort.batches.shape[1:], cohort.masks
    units = 1 if masks is None else prod(masks.shape[3:])
    x, y = inputs.new_empty(*rows, *inputs.shape[1:]), labels.new_empty(rows)
    counts, mask = cohort.counts.new_empty(rows[0]), None if masks is None else masks.new_empty(masks.shape[1:])
    row_kernels.gather_kernel[(prod(rows),)](
        inputs, labels, cohort.batches, cohort.counts, x if masks is None else masks, cohort.step,
        x, y, counts, x if mask is None else mask, rows[1], prod(inputs.shape[1:]), units,
        MASK=masks is not None, TILE=1024,
    )  # fmt: skip
    return Batch(x, y, counts, mask)

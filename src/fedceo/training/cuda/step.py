"""A step of SGD on a GPU: one kernel that draws its noise on the way, where it knows all that the Work asks for."""

import torch
import triton
from torch import Tensor

from fedceo.training.batched import step as general
from fedceo.training.batched.cohort import Cohort
from fedceo.training.cuda import step_kernels
from fedceo.training.work import Work

ENTRIES = 4 * step_kernels.QUARTER.value
"""Entries of a row that one program takes."""


def fill_noise(keys: Tensor, step: Tensor, size: int) -> Tensor:
    """(K, size) standard normals, each a function of (its client's key, the step, the index of the entry)."""
    out = torch.empty(len(keys), size, device=keys.device)
    step_kernels.fill_noise_kernel[(len(keys), triton.cdiv(size, ENTRIES))](out, keys, step, size)
    return out


def take_step(cohort: Cohort, work: Work) -> None:
    """See take_step of batched/step.py, which takes the steps that the kernel does not know, with the same noise."""
    if not work.is_plain:
        noise = None if cohort.keys is None else fill_noise(cohort.keys, cohort.step, cohort.size)
        general.take_step(cohort, work, noise)
        return
    clients, row = cohort.weights.shape
    step_kernels.take_step_kernel[(clients, triton.cdiv(row, ENTRIES))](
        cohort.weights, _or(cohort.momenta, cohort.weights), _or(cohort.starts, cohort.weights), cohort.gradients,
        _or(cohort.keys, cohort.steps), cohort.step, cohort.steps, cohort.rates, _or(cohort.stds, cohort.rates),
        cohort.divisors, row, work.momentum, work.proximal,
        NOISY=work.record is not None, MOMENTUM=cohort.momenta is not None, PROXIMAL=work.proximal != 0, num_warps=2,
    )  # fmt: skip


def _or(tensor: Tensor | None, unread: Tensor) -> Tensor:
    """The tensor, or one that the kernel will not read: each of its pointers must point somewhere."""
    return unread if tensor is None else tensor

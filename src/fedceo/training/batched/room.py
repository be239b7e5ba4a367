"""The memory that a cohort in training takes, by which it is cut into parts."""

import torch
from torch import Tensor, nn

from fedceo.training.context import TrainingContext
from fedceo.training.work import Work

CPU_BYTES = 2**30
"""Memory that a cohort in training may take on a CPU; on a GPU it may take a quarter of what is free."""
CACHE_BYTES = 2**25
"""Memory of the clients that one thread trains at a time on a CPU: beyond its cache it would wait for memory.

The estimate that it bounds is some three times what a chain really touches; the power of two with the least CPU time.
"""


def budget(device: torch.device) -> int:
    """Memory that a cohort in training may take on a device."""
    if device.type == "cuda":
        free, whole = torch.cuda.mem_get_info(device)
        allowed = torch.cuda.get_per_process_memory_fraction(device) * whole
        return int(min(free, allowed)) // 4
    return CPU_BYTES


def bytes_of_a_client(context: TrainingContext, work: Work, kept: int) -> int:
    """Memory of a client by what autograd would keep for a record, `kept`, and what a step needs."""
    parameters = list(context.model.parameters())
    size = sum(p.numel() * p.element_size() for p in parameters)
    convolutions = sum(p.numel() * p.element_size() for p in parameters if p.ndim > 2)
    a_record = 3 * kept + (2 * convolutions if work.record else 0)
    records = min(work.batch_size, int(context.federation.sizes.max()))
    return 5 * size + 2 * records * a_record


def kept_for_a_record(model: nn.Module, shape: tuple[int, ...]) -> int:
    """Bytes that autograd keeps of a record for the backward pass."""
    kept: list[int] = []
    weights = {p.data_ptr() for p in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            kept.append(tensor.numel() * tensor.element_size())
        return tensor

    first = next(model.parameters())
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(first.new_zeros(1, *shape))
    return sum(kept)

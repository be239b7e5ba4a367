"""The noise of record-level privacy, step by step, for one client or many.

On a CPU each client's noise comes from its own generator of the Schedule, step after step. On a GPU it is a function of
(key, step, entry), the key drawn from that generator, so that it can be drawn inside a captured step, for many clients
or one: a loop over clients gets the same numbers.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedceo.training.draws import draw_key
from fedceo.training.per_example import standard_normal

HAS_TRITON = find_spec("triton") is not None  # torch for a CPU, and for some systems, comes without


def has_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels of training/cuda run on this device in this precision."""
    return HAS_TRITON and device.type == "cuda" and dtype == torch.float32


class RecordNoise:
    """Standard normals for the clients of a cohort in one round.

    Attributes:
        keys: (K,) the clients' keys where noise is a function of them, else None.
    """

    def __init__(self, generators: Sequence[np.random.Generator], device: torch.device, dtype: torch.dtype) -> None:
        """generators: each client's own, as TrainingContext.noise_generators gives them."""
        self.generators, self.device, self.dtype = generators, device, dtype
        self.keys: Tensor | None = None
        if HAS_TRITON and device.type == "cuda":
            self.keys = torch.tensor([draw_key(generator) for generator in generators], device=device)

    @cached_property
    def pool(self) -> ThreadPoolExecutor | None:
        """As many threads as torch may use, or none where that is one: clients may train in threads of their own."""
        threads = torch.get_num_threads()
        return ThreadPoolExecutor(threads) if threads > 1 else None

    def draw(self, step: int, size: int) -> Tensor:
        """(K, size) standard normals for one step; steps must be asked for in order."""
        if self.keys is not None:
            from fedceo.training.cuda.step import fill_noise

            return fill_noise(self.keys, torch.tensor([step], device=self.device), size).to(self.dtype)
        if self.device.type != "cpu":
            return torch.stack([standard_normal(size, each, self.device, self.dtype) for each in self.generators])
        drawn = torch.empty(len(self.generators), size, dtype=self.dtype)

        def fill(row: npt.NDArray[Any], generator: np.random.Generator) -> None:
            generator.standard_normal(out=row, dtype=row.dtype)

        # half of a step's time would go into drawing one client after another; NumPy lets go of Python meanwhile
        together = map if self.pool is None else self.pool.map
        list(together(fill, drawn.numpy(), self.generators))
        return drawn

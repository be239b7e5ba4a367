"""Steps recorded once as a CUDA graph and replayed: hundreds of small launches become one."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from fedceo.training.batched.cohort import Cohort
from fedceo.training.work import Work

MOST_GRAPHS = 16
"""Graphs that are kept, one for each size of cohort; the oldest makes room for the newest."""
MOST_OF_MEMORY = 1 / 8
"""The part of the GPU's memory that the cohorts of kept graphs may take together."""


class CapturedSteps:
    """The graphs made so far, each with the memory that its step reads and writes.

    Attributes:
        why_not: CUDA's message when a step could not be recorded; such steps are taken one by one.
    """

    def __init__(self) -> None:
        self.graphs: dict[Any, tuple[Cohort, torch.cuda.CUDAGraph | None]] = {}
        self.pool = torch.cuda.graph_pool_handle()  # one for all: they never run at once and leave nothing in it
        self.why_not: str | None = None

    def run(self, cohort: Cohort, work: Work, step: Callable[[Cohort], None]) -> Cohort:
        """Take all steps of a round; returns the cohort after it, which is the one that the graph was recorded on."""
        # all that a step depends on beside the values in the cohort's tensors
        key = (
            work.kind,
            torch.get_float32_matmul_precision(),
            tuple((name, t.shape) for name, t in _tensors(cohort)),
        )
        if key not in self.graphs:
            self._make_room(cohort)
            self.graphs[key] = cohort, self._capture(cohort, step)
        held, graph = self.graphs[key]
        if held is not cohort:
            for (_, to), (_, from_) in zip(_tensors(held), _tensors(cohort), strict=True):
                to.copy_(from_)
        for _ in range(cohort.longest):
            if graph:
                graph.replay()
            else:
                step(held)
        return held

    def _make_room(self, cohort: Cohort) -> None:
        """Forget the oldest graphs until there is room for one of this cohort."""
        most = MOST_OF_MEMORY * torch.cuda.get_device_properties(cohort.weights.device).total_memory
        while self.graphs and (
            len(self.graphs) >= MOST_GRAPHS
            or _bytes(cohort) + sum(_bytes(each) for each, _ in self.graphs.values()) > most
        ):
            self.graphs.pop(next(iter(self.graphs)))

    def _capture(self, cohort: Cohort, step: Callable[[Cohort], None]) -> torch.cuda.CUDAGraph | None:
        """Record a step after a rehearsal, in which libraries set themselves up; the cohort is as before afterwards."""
        before = [(t, t.clone()) for _, t in _tensors(cohort)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(cohort)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        recorded = True
        try:
            with torch.cuda.graph(graph, pool=self.pool):
                step(cohort)
        except RuntimeError as error:  # a module that asks the host something in the middle
            recorded, self.why_not = False, str(error).splitlines()[0]
        for t, was in before:
            t.copy_(was)
        return graph if recorded else None


def _tensors(cohort: Cohort) -> list[tuple[str, Tensor]]:
    return [(f.name, t) for f in fields(cohort) if isinstance(t := getattr(cohort, f.name), Tensor)]


def _bytes(cohort: Cohort) -> int:
    return sum(t.nbytes for _, t in _tensors(cohort))

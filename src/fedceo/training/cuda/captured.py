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
AT_ONCE = 8
"""Steps that one graph takes; a graph of one step takes the rest of a round."""
MOST_OF_MEMORY = 1 / 8
"""The part of the GPU's memory that the cohorts of kept graphs may take together."""


class CapturedSteps:
    """The graphs made so far, each with the memory that its step reads and writes.

    Attributes:
        why_not: CUDA's message when a step could not be recorded; such steps are taken one by one.
    """

    def __init__(self) -> None:
        self.graphs: dict[Any, tuple[Cohort, dict[int, torch.cuda.CUDAGraph]]] = {}
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
        held, graphs = self.graphs[key]
        if held is not cohort:
            for (_, to), (_, from_) in zip(_tensors(held), _tensors(cohort), strict=True):
                to.copy_(from_)
        left = cohort.longest
        for steps, graph in graphs.items():
            for _ in range(left // steps):
                graph.replay()
            left %= steps
        for _ in range(left):  # all of them, where nothing could be recorded
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

    def _capture(self, cohort: Cohort, step: Callable[[Cohort], None]) -> dict[int, torch.cuda.CUDAGraph]:
        """Record AT_ONCE steps and one, after a rehearsal in which libraries set themselves up.

        The cohort is as before afterwards. Returns the graphs by their number of steps, none where it fails.
        """
        before = [(t, t.clone()) for _, t in _tensors(cohort)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(cohort)
        torch.cuda.current_stream().wait_stream(side)
        graphs: dict[int, torch.cuda.CUDAGraph] = {}
        try:
            for steps in (AT_ONCE, 1):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self.pool):
                    for _ in range(steps):
                        step(cohort)
                graphs[steps] = graph
        except RuntimeError as error:  # a module that asks the host something in the middle
            graphs, self.why_not = {}, str(error).splitlines()[0]
        for t, was in before:
            t.copy_(was)
        return graphs


def _tensors(cohort: Cohort) -> list[tuple[str, Tensor]]:
    return [(f.name, t) for f in fields(cohort) if isinstance(t := getattr(cohort, f.name), Tensor)]


def _bytes(cohort: Cohort) -> int:
    return sum(t.nbytes for _, t in _tensors(cohort))

"""The trainer that takes one client after another: any model, any device. It is the oracle for every faster trainer."""

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from itertools import groupby
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedceo.tensors.weights import Weights, as_row, from_row
from fedceo.training import terms
from fedceo.training.context import TrainingContext
from fedceo.training.noise import RecordNoise
from fedceo.training.optimisers import adam_direction
from fedceo.training.per_example import clipped_sum
from fedceo.training.work import Trained, Work

Result = TypeVar("Result")


class LoopTrainer:
    """SGD step by step, client by client; on a CPU as many clients at a time as torch may use threads.

    Threads work on clients, not on parts of a product: small products gain nothing from several threads and lose much
    when anything else runs. So a result does not depend on the number of threads. A model that draws from torch's
    global stream, as nn.Dropout does, has its clients trained one by one.
    """

    def __init__(self, context: TrainingContext) -> None:
        self.context = context

    def train(self, starts: Weights, clients: Sequence[int], round_: int, work: Work) -> Trained:
        each_start = [{name: w[k] for name, w in starts.items()} for k in range(len(clients))]
        trained = self._each(
            lambda model, k: self._train_client(model, each_start[k], clients[k], round_, work.of(k)), len(clients)
        )
        weights = {name: torch.stack([found[name] for found, _ in trained]) for name in starts}
        steps = [self.context.steps(client, work) for client in clients]
        return Trained(terms.rescaled(work, starts, weights, steps), torch.stack([loss for _, loss in trained]))

    def _each(self, task: Callable[[nn.Module, int], Result], count: int) -> list[Result]:
        """The results of task(model, k) for every client k, in their order."""
        if self._workers is None or count == 1:
            return [task(self.context.model, k) for k in range(count)]
        idle = list(self._models)

        def run(k: int) -> Result:
            model = idle.pop()  # functional_call exchanges a module's parameters, so each thread has a model of its own
            try:
                return task(model, k)
            finally:
                idle.append(model)

        return list(self._workers.map(run, range(count)))

    @cached_property
    def _workers(self) -> ThreadPoolExecutor | None:
        threads = torch.get_num_threads()
        if self._uses_global_stream or threads == 1:
            return None
        self._models = [copy.deepcopy(self.context.model) for _ in range(threads)]
        self.context.records(torch.zeros(1, dtype=torch.int64))  # normalises the records once, before threads read them
        return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def _train_client(
        self, model: nn.Module, start: Weights, client: int, round_: int, work: Work
    ) -> tuple[dict[str, Tensor], Tensor]:
        """A client's trained weights and mean loss over its steps; work: its own row of the cohort's."""
        context = self.context
        batches, masks = context.plan(client, round_, work)
        noise = RecordNoise([(context.schedule, work.moment(round_), [client])], context.device, context.dtype)
        start = {name: w.to(context.device, context.dtype) for name, w in start.items()}
        anchor = start if work.anchor is None else work.anchor
        anchor_row = _row({name: anchor[name].to(w) for name, w in start.items()})
        shift = None if work.shift is None else {n: work.shift[n].to(w) / len(batches) for n, w in start.items()}
        weights = {name: w.clone() for name, w in start.items()}
        momenta, squares = (
            {name: torch.zeros_like(w) for name, w in weights.items()} if wanted else {}
            for wanted in (work.momentum or work.is_adaptive, work.is_adaptive)
        )
        noised: Weights = {name: torch.zeros_like(w) for name, w in weights.items()} if work.ascent else {}
        losses = []
        model.train()
        with self._client_stream(work.moment(round_), client):
            for step, row in enumerate(batches):
                real = row[row >= 0].to(context.device)
                x, y = context.records(real)
                mask = None if masks is None else masks[step, : len(real)].to(context.device)
                at: Weights = weights
                if work.ascent:
                    uphill = noised if work.record else self._gradient(model, weights, x, y, mask, work)[0]
                    way = from_row(terms.ascent(work, _row(uphill))[0], weights)
                    at = {name: w + way[name] for name, w in weights.items()}
                gradients, loss = self._gradient(model, at, x, y, mask, work)
                if work.record:
                    divisor = context.expected_batch(client, work)
                    noised = gradients = _noised(gradients, work, noise, step, divisor)
                if terms.active_terms(work):
                    gradients = from_row(_with_terms(work, _row(gradients), _row(weights), anchor_row)[0], weights)
                for name, w in weights.items():
                    if work.weight_decay and work.only is not None and name not in work.only:
                        continue
                    gradient = gradients[name]
                    if work.is_adaptive:
                        gradient = adam_direction(gradient, momenta[name], squares[name], step + 1)
                    elif work.momentum:
                        gradient = momenta[name].mul_(work.momentum).add_(gradient)
                    if work.separate_decay:
                        w.mul_(1 - work.learning_rate * work.separate_decay)
                    w.sub_(gradient, alpha=work.learning_rate)
                    if shift is not None:
                        w.add_(shift[name])
                if terms.projects(work):
                    projected = from_row(terms.project(work, _row(weights), anchor_row)[0], weights)
                    # memory of their own, for products may round otherwise where it is not aligned
                    weights = {name: w.clone() for name, w in projected.items()}
                losses.append(loss)
        return weights, torch.stack(losses).mean()

    @contextmanager
    def _client_stream(self, moment: int, client: int) -> Iterator[None]:
        """Seed torch's global stream for this client and moment, if the model draws from it, and put it back after."""
        if not self._uses_global_stream:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.context.schedule.number("dropout", moment, client))
            yield

    @cached_property
    def _uses_global_stream(self) -> bool:
        """Whether the model draws from torch's global stream in training, which is assumed on a GPU."""
        context = self.context
        context.model.train()
        before = torch.get_rng_state()
        with torch.no_grad():
            context.model(next(context.model.parameters()).new_zeros(1, *context.federation.shape))
        return not torch.equal(before, torch.get_rng_state()) or context.device.type != "cpu"

    def _loss(self, model: nn.Module, weights: Weights, x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
        arguments = (x,) if mask is None else (x, mask)
        return self.context.task.loss(functional_call(model, dict(weights), arguments), y)

    def _gradient(
        self, model: nn.Module, weights: Weights, x: Tensor, y: Tensor, mask: Tensor | None, work: Work
    ) -> tuple[dict[str, Tensor], Tensor]:
        """A client's gradient, with zeros for parameters that do not train, and its mean loss.

        The gradient is the mean over the batch, or under record privacy the sum of its records' clipped gradients.
        """
        trained = {name: w for name, w in weights.items() if work.only is None or name in work.only}
        if work.record is None:
            found, loss = self._mean_gradient(model, weights, trained, x, y, mask)
        elif len(x) == 0:
            found, loss = {}, x.new_zeros(())
        else:
            found, loss = self._clipped_gradients(model, weights, trained, x, y, mask, work.record.clip)
        return {name: found.get(name, torch.zeros_like(w)) for name, w in weights.items()}, loss

    def _mean_gradient(
        self, model: nn.Module, weights: Weights, trained: Weights, x: Tensor, y: Tensor, mask: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        leaves = {name: w.detach().requires_grad_() for name, w in trained.items()}
        loss = self._loss(model, {**weights, **leaves}, x, y, mask)
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, found, strict=True)), loss.detach()

    def _clipped_gradients(
        self,
        model: nn.Module,
        weights: Weights,
        trained: Weights,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None,
        clip: float,
    ) -> tuple[dict[str, Tensor], Tensor]:
        def one(trained: Weights, x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
            return self._loss(model, {**weights, **trained}, x[None], y[None], None if mask is None else mask[None])

        axes = (None, 0, 0, None if mask is None else 0)
        gradients, losses = vmap(grad_and_value(one), in_dims=axes, randomness="different")(trained, x, y, mask)
        present = torch.ones(len(x), dtype=x.dtype, device=x.device)
        return clipped_sum(gradients, present, clip), losses.mean()


def _noised(gradients: Weights, work: Work, noise: RecordNoise, step: int, divisor: float) -> dict[str, Tensor]:
    """The noised sum of clipped gradients, divided by the expected batch; zeros for what does not train."""
    assert work.record is not None
    std = work.record.noise_multiplier * work.record.clip
    sizes = [g.numel() for g in gradients.values()]
    parts = torch.split(noise.draw(step, sum(sizes))[0].mul_(std), sizes)
    return {
        name: (g + part.view_as(g)) / divisor if work.only is None or name in work.only else torch.zeros_like(g)
        for (name, g), part in zip(gradients.items(), parts, strict=True)
    }


def _with_terms(work: Work, gradient: Tensor, weights: Tensor, anchor: Tensor) -> Tensor:
    """The gradient with the terms that the Work asks for; all are (1, D)."""
    for direction, along in groupby(terms.active_terms(work), key=lambda term: term.direction):
        vector = direction(weights, anchor)
        pull: Tensor | float = 0.0
        for term in along:
            applies = 1.0 if term.applies is None else term.applies(work, vector).to(vector.dtype)
            pull = pull + term.strength(work) * applies
        gradient = gradient + pull * vector
    return gradient


def _row(weights: Weights) -> Tensor:
    """(1, D): one model as a row."""
    return as_row(weights)[None]

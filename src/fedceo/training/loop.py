"""One client after another: any model, any device. The oracle for every faster trainer."""

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedceo.tensors.weights import Weights
from fedceo.training.context import TrainingContext
from fedceo.training.noise import RecordNoise
from fedceo.training.per_example import clipped_sum
from fedceo.training.work import Trained, Work

Result = TypeVar("Result")


class LoopTrainer:
    """Plain SGD, step by step, client by client; on a CPU as many clients at a time as torch may use threads.

    Threads work on clients, not on parts of a product: small products gain nothing from several threads and lose much
    when anything else runs. So a result depends neither on their number nor on what they do. A model that draws from
    torch's global stream, as nn.Dropout does, has its clients trained one by one.
    """

    def __init__(self, context: TrainingContext) -> None:
        self.context = context

    def train(self, starts: Weights, clients: Sequence[int], round_: int, work: Work) -> Trained:
        one_by_one = [{name: w[k] for name, w in starts.items()} for k in range(len(clients))]
        trained = self._each(
            lambda model, k: self._train_client(model, one_by_one[k], clients[k], round_, work), len(clients)
        )
        weights = {name: torch.stack([found[name] for found, _ in trained]) for name in starts}
        return Trained(weights, torch.stack([loss for _, loss in trained]))

    def _each(self, task: Callable[[nn.Module, int], Result], count: int) -> list[Result]:
        """task(model, k) for every client, in their order."""
        if self._workers is None or count == 1:
            return [task(self.context.model, k) for k in range(count)]
        idle = list(self._models)

        def run(k: int) -> Result:
            model = idle.pop()  # functional_call exchanges a module's parameters, so each thread has its own
            try:
                return task(model, k)
            finally:
                idle.append(model)

        return list(self._workers.map(run, range(count)))

    @cached_property
    def _workers(self) -> ThreadPoolExecutor | None:
        threads = torch.get_num_threads()
        if self._draws or threads == 1:
            return None
        self._models = [copy.deepcopy(self.context.model) for _ in range(threads)]
        self.context.records(torch.zeros(1, dtype=torch.int64))  # makes what all will read
        return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def _train_client(
        self, model: nn.Module, start: Weights, client: int, round_: int, work: Work
    ) -> tuple[dict[str, Tensor], Tensor]:
        context = self.context
        batches, masks = context.plan(client, round_, work)
        noise = RecordNoise(context.schedule, work.moment(round_), [client], context.device, context.dtype)
        start = {name: w.to(context.device, context.dtype) for name, w in start.items()}
        weights = {name: w.clone() for name, w in start.items()}
        size = sum(w.numel() for w in weights.values())
        momenta = {name: torch.zeros_like(w) for name, w in weights.items()} if work.momentum or work.ascent else {}
        noised = momenta
        losses = []
        model.train()
        with self._own_stream(work.moment(round_), client):
            for step, row in enumerate(batches):
                real = row[row >= 0].to(context.device)
                x, y = context.records(real)
                mask = None if masks is None else masks[step, : len(real)].to(context.device)
                if work.record is None:
                    at = weights
                    if work.ascent:
                        at = _climbed(weights, self._gradient(model, weights, x, y, mask, work)[0], work.ascent)
                    gradients, loss = self._gradient(model, at, x, y, mask, work)
                else:
                    at = _climbed(weights, noised, work.ascent) if work.ascent else weights
                    gradients, loss = self._private_gradient(model, at, x, y, mask, work)
                    std = work.record.noise_multiplier * work.record.clip
                    parts = torch.split(noise.draw(step, size)[0].mul_(std), [w.numel() for w in weights.values()])
                    for (name, w), part in zip(weights.items(), parts, strict=True):
                        gradients[name] = (gradients[name] + part.view_as(w)) / context.expected_batch(client, work)
                        if work.only is not None and name not in work.only:
                            gradients[name] = torch.zeros_like(w)
                    noised = gradients
                gradients = _with_terms(gradients, weights, start, work)
                for name, w in weights.items():
                    if work.momentum:
                        gradients[name] = momenta[name].mul_(work.momentum).add_(gradients[name])
                    w.sub_(gradients[name], alpha=work.learning_rate)
                if work.radius is not None:
                    weights = _put_back(weights, start, work.radius)
                losses.append(loss)
        return weights, torch.stack(losses).mean()

    @contextmanager
    def _own_stream(self, moment: int, client: int) -> Iterator[None]:
        """A model that draws from torch's global stream gets one of its own for this client and moment."""
        if not self._draws:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.context.schedule.number("dropout", moment, client))
            yield

    @cached_property
    def _draws(self) -> bool:
        """Whether the model draws from torch's global stream in training."""
        context = self.context
        context.model.train()
        before = torch.get_rng_state()
        with torch.no_grad():
            context.model(next(context.model.parameters()).new_zeros(1, *context.federation.shape))
        return not torch.equal(before, torch.get_rng_state()) or context.device.type != "cpu"

    def _loss(self, model: nn.Module, weights: Weights, x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
        arguments = (x,) if mask is None else (x, mask)
        return F.cross_entropy(functional_call(model, dict(weights), arguments), y)

    def _gradient(
        self, model: nn.Module, weights: Weights, x: Tensor, y: Tensor, mask: Tensor | None, work: Work
    ) -> tuple[dict[str, Tensor], Tensor]:
        trained = {name: w for name, w in weights.items() if work.only is None or name in work.only}
        leaves = {name: w.detach().requires_grad_() for name, w in trained.items()}
        loss = self._loss(model, {**weights, **leaves}, x, y, mask)
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        gradients = dict(zip(leaves, found, strict=True))
        return {name: gradients.get(name, torch.zeros_like(w)) for name, w in weights.items()}, loss.detach()

    def _private_gradient(
        self, model: nn.Module, weights: Weights, x: Tensor, y: Tensor, mask: Tensor | None, work: Work
    ) -> tuple[dict[str, Tensor], Tensor]:
        assert work.record is not None
        if len(x) == 0:
            return {name: torch.zeros_like(w) for name, w in weights.items()}, x.new_zeros(())

        trained = {name: w for name, w in weights.items() if work.only is None or name in work.only}

        def one(trained: Weights, x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
            return self._loss(model, {**weights, **trained}, x[None], y[None], None if mask is None else mask[None])

        axes = (None, 0, 0, None if mask is None else 0)
        gradients, losses = vmap(grad_and_value(one), in_dims=axes, randomness="different")(trained, x, y, mask)
        present = torch.ones(len(x), dtype=x.dtype, device=x.device)
        sums = clipped_sum(gradients, present, work.record.clip)
        return {name: sums.get(name, torch.zeros_like(w)) for name, w in weights.items()}, losses.mean()


def _norm(tensors: Weights) -> Tensor:
    return torch.cat([t.flatten() for t in tensors.values()]).norm()


def _climbed(weights: Weights, way: Weights, ascent: float) -> dict[str, Tensor]:
    factor = ascent / _norm(way).clamp_min(1e-30)
    return {name: w + way[name] * factor for name, w in weights.items()}


def _with_terms(gradients: Weights, weights: Weights, start: Weights, work: Work) -> dict[str, Tensor]:
    """With what pulls the weights back to their start."""
    if not work.proximal and not work.outside:
        return dict(gradients)
    moved = {name: w - start[name] for name, w in weights.items()}
    norm = _norm(moved)
    pull = work.proximal + work.outside * (norm > work.outside_radius).to(norm.dtype)
    return {name: g + pull * moved[name] for name, g in gradients.items()}


def _put_back(weights: Weights, start: Weights, radius: float) -> dict[str, Tensor]:
    moved = {name: w - start[name] for name, w in weights.items()}
    norm = _norm(moved)
    if norm <= radius:
        return dict(weights)
    return {name: start[name] + m * (radius / norm) for name, m in moved.items()}

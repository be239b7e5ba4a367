"""The whole cohort as one program: every step trains one batch of every client at once.

The clients' models are the rows of one matrix. Batches of clients of different sizes are padded: filling is records of
zeros that count for nothing, and a client that is done takes no step. A cohort that would not fit in memory trains some
clients at a time. On a GPU a step is captured once and replayed (cuda/captured.py).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from fedceo.tensors.weights import Weights
from fedceo.training.batched.chain import Chain
from fedceo.training.batched.cohort import Batch, Call, Cohort, Share
from fedceo.training.batched.convolution import Conv
from fedceo.training.batched.descent import descend, is_bare
from fedceo.training.batched.functional import Functional
from fedceo.training.batched.losses import loss_of
from fedceo.training.batched.products import Product
from fedceo.training.batched.room import CACHE_BYTES, budget, bytes_of_a_client, kept_for_a_record
from fedceo.training.batched.rotation import Rotation
from fedceo.training.batched.span import Span
from fedceo.training.batched.step import ascend, take_step
from fedceo.training.batched.tracing import NotAChainError, read_chain
from fedceo.training.context import TrainingContext
from fedceo.training.cuda.captured import CapturedSteps
from fedceo.training.draws import DeviceDraws
from fedceo.training.memory import Buffers
from fedceo.training.noise import RecordNoise, has_kernels
from fedceo.training.terms import rescaled
from fedceo.training.threads import one_torch_thread
from fedceo.training.work import Trained, Work

WORTH_A_THREAD = 2**23
"""Multiplications in a pass over the cohort's batches from which threads gain more than they wait for Python."""


class Program(Protocol):
    """A way to compute the gradients of K clients: a Chain, or Functional for any other model."""

    def gradient(
        self,
        weights: Weights,
        batch: Batch,
        clips: Tensor | None,
        out: Weights,
        only: frozenset[str] | None = None,
        take: Callable[[Product], None] | None = None,
    ) -> Tensor:
        """See Chain.gradient."""


class BatchedTrainer:
    """SGD on K stacked models at once."""

    turned: bool | None = None
    """Whether steps are taken in coordinates of clients' records where they can be; None: where that is quicker."""

    def __init__(self, context: TrainingContext, most_bytes: int | None = None) -> None:
        """most_bytes: memory for the clients that train at a time, instead of CPU_BYTES or a quarter of the GPU's."""
        self.context, self.most_bytes = context, most_bytes
        self._reads: dict[str, TrainingContext] = {}
        self._buffers = Buffers()
        self._has_kernels = has_kernels(context.device, context.dtype)
        self.captured = CapturedSteps() if self._has_kernels and context.make_ready() else None

    def train(self, starts: Weights, clients: Sequence[int], round_: int, work: Work) -> Trained:
        return self.train_together([Call(self.context, starts, clients, round_, work)])[0]

    def train_together(self, calls: Sequence[Call]) -> list[Trained]:
        """Train the cohorts of one or more runs as one.

        calls: of runs with this trainer's program and records, and works of one kind (see joining.py).
        """
        self.context.model.train()
        sizes, work = [len(call.clients) for call in calls], calls[0].work
        clients = sum(sizes)
        workers = self._workers(clients, work)
        most = min(self._clients_at_once(call, workers) for call in calls)
        # threads take what as many Ray workers would, so that the same clients are in one batch
        each = -(-clients // (workers or 1))
        places = [here for share in cut(range(clients), each) for here in cut(share, most)]
        device, dtype = self.context.device, self.context.dtype
        weights = {
            name: self._buffers.empty((clients, *w.shape[1:]), dtype, device) for name, w in calls[0].starts.items()
        }
        self._buffers.let_go()

        def part(here: range) -> Tensor:
            return self._train(
                list(_cut(calls, here.start, here.stop)), {n: w[here.start : here.stop] for n, w in weights.items()}
            )

        if workers is None:
            losses = [part(here) for here in places]
        else:
            self.context.make_ready()  # once, not once a thread
            with one_torch_thread(), ThreadPoolExecutor(workers) as pool:
                losses = list(pool.map(part, places))
        of_runs = {name: w.split(sizes) for name, w in weights.items()}
        each_loss = torch.cat(losses).split(sizes)

        def ended(call: Call, k: int) -> Trained:
            steps = [call.context.steps(client, call.work) for client in call.clients]
            return Trained(
                rescaled(call.work, call.starts, {name: w[k] for name, w in of_runs.items()}, steps), each_loss[k]
            )

        return [ended(call, k) for k, call in enumerate(calls)]

    def _workers(self, clients: int, work: Work) -> int | None:
        """The number of threads that train some of the clients each, with one thread of torch's in each of them.

        On a CPU such threads never wait for each other in a product, as torch's own do, which burns a hundred times the
        product where anything else is running. Steps so short that they would wait for Python are taken by one thread.

        Returns:
            The number, or None where torch's own threads remain: on a GPU, where torch.func puts weights into the
            model, of which there is one, and for one client, where it has no convolution.
        """
        program = self._program_for(work)
        if self.context.device.type != "cpu" or not isinstance(program, Chain):
            return None
        convolves = any(isinstance(block, Conv) for block in program.blocks)
        if clients == 1 and not convolves:
            return None
        records = min(work.batch_size, int(self.context.federation.sizes.max()))
        products = clients * records * sum(p.numel() for p in self.context.model.parameters())
        return torch.get_num_threads() if convolves or products >= WORTH_A_THREAD else 1

    @cached_property
    def program(self) -> Program:
        """Blocks where the model is a chain of layers they know, torch.func otherwise."""
        model, task = self.context.model, self.context.task
        loss = loss_of(task)
        try:
            if loss is None:
                raise NotAChainError("the gradient of its loss is not written out")
            chain = read_chain(model, self.context.federation.shape)
        except NotAChainError:
            return self._functional
        return chain.fused() if self._has_kernels else replace(chain, loss=loss)

    @cached_property
    def _functional(self) -> Functional:
        return Functional(self.context.model, self.context.task, self._budget // 8)

    def _program_for(self, work: Work) -> Program:
        """The program, but torch.func for a work that trains a part of a layer: a chain knows whole layers alone.

        On a GPU the chain's step leaves the other part as it is, and the norm that is clipped is that of both.
        """
        is_partial = isinstance(self.program, Chain) and not self.program.takes_whole(work.only)
        return self._functional if is_partial and not self._has_kernels else self.program

    @cached_property
    def _span(self) -> Span | None:
        if self.context.device.type != "cpu" or not isinstance(self.program, Chain):
            return None
        return Span.of(self.program, self.context)

    def _goes_by_span(self, call: Call) -> bool:
        fits = self._span is not None and self._span.suits(call)
        return fits and is_bare([call]) and self._program_for(call.work) is self.program

    @cached_property
    def _rotation(self) -> Rotation | None:
        if self.context.device.type != "cpu" or not isinstance(self.program, Chain):
            return None
        return Rotation.of(self.program, self.context)

    def turns(self, work: Work) -> bool:
        """Whether the steps of a work are taken in coordinates of clients' records (see rotation.py)."""
        if self._rotation is None or work.is_bare or self._program_for(work) is not self.program:
            return False
        pays = self._rotation.pays(work) if self.turned is None else self.turned
        return pays and self._rotation.knows(work)

    def _goes_turned(self, call: Call) -> bool:
        return call.context.federation is self.context.federation and self.turns(call.work)

    def _read(self, program: Program) -> TrainingContext:
        """The context with records as the program reads them fastest, which depends on the precision in force."""
        precision, context = torch.get_float32_matmul_precision(), self.context
        if not isinstance(program, Chain):
            return context
        if precision not in self._reads:
            stored = context.inputs
            if stored is not None:
                stored = program.stored(stored)
            self._reads[precision] = context if stored is context.inputs else replace(context, ready=stored)
        return self._reads[precision]

    def _train(self, calls: Sequence[Call], out: Weights) -> Tensor:
        """Train these clients and write their weights to `out`; returns their mean losses."""
        program = self._program_for(calls[0].work)
        read = self._read(program)
        if isinstance(program, Chain) and not self._has_kernels and is_bare(calls):
            if len(calls) == 1 and self._goes_by_span(calls[0]):
                assert self._span
                return self._span.descend(calls[0], read, out)
            return descend(program, calls, read, out)
        runs = [(call.context.schedule, call.work.moment(call.round_), call.clients) for call in calls]
        is_turned = len(calls) == 1 and self._goes_turned(calls[0])
        purpose = "turned noise" if is_turned else "record noise"
        noise = RecordNoise(runs, self.context.device, self.context.dtype, purpose) if calls[0].work.record else None
        shares = [self._share(call) for call in calls]
        if is_turned:
            assert self._rotation
            turned = self._rotation.turn(calls[0], shares[0], read, noise)
            cohort = self._steps(turned.chain, turned.context, [turned.share], noise)
            turned.end(cohort.named, out)
        else:
            cohort = self._steps(program, read, shares, noise)
            for name, w in cohort.named.items():
                out[name].copy_(w[: len(out[name])])
        return (cohort.losses / cohort.steps)[: sum(len(call.clients) for call in calls)]

    def _steps(
        self, program: Program, read: TrainingContext, shares: Sequence[Share], noise: RecordNoise | None
    ) -> Cohort:
        """The cohort of these clients after all of their steps."""
        cohort, work = Cohort.of(shares, read, None if noise is None else noise.keys), shares[0].work
        in_place = self._has_kernels and isinstance(program, Chain) and program.reads_in_place(cohort.shapes)
        measured = work.record is not None and isinstance(program, Chain) and program.first_linear is not None

        def step(cohort: Cohort, number: int) -> None:
            done = self._write_gradients(program, cohort, cohort.batch(read, in_place, measured), work)
            self._take_step(cohort, work, noise, number, done)
            cohort.step += 1

        if self.captured:
            return self.captured.run(cohort, work, lambda cohort: step(cohort, 0))
        for number in range(cohort.longest):
            step(cohort, number)
        return cohort

    def _share(self, call: Call) -> Share:
        """The clients of a call with their batches, and masks, or the keys of masks that a kernel draws."""
        context, clients, round_, work = call.context, call.clients, call.round_, call.work
        batches = context.batches(clients, round_, work)
        divisors = [context.expected_batch(client, work) for client in clients]
        draws = context.draws
        if self._has_kernels and context.mask_shape is not None and isinstance(draws, DeviceDraws):
            keys = draws.mask_keys(work.moment(round_), clients)
            return Share(work, call.starts, batches, divisors, mask_keys=keys)
        return Share(work, call.starts, batches, divisors, context.masks(clients, round_, work, batches))

    def _write_gradients(self, program: Program, cohort: Cohort, batch: Batch, work: Work) -> set[str]:
        """Compute the gradients of one batch of every client, where the Work wants them taken; adds up the losses.

        Returns the parameters whose step was taken on the way, without a gradient being written.
        """
        done: set[str] = set()
        # with noise to draw on the way, a product that is first written down is quicker
        on_the_way = self._has_kernels and work.is_plain and work.record is None and cohort.is_aligned

        def take(product: Product) -> None:
            from fedceo.training.cuda import step

            step.take_product(cohort, work, product)
            done.update(product.names)

        def gradients() -> Tensor:
            return program.gradient(
                cohort.named, batch, cohort.clips, cohort.named_gradients, work.only, take if on_the_way else None
            )

        if not work.ascent:
            cohort.losses += gradients()
            return done
        if work.record is None:
            gradients()
        before = ascend(cohort, work)
        cohort.losses += gradients()
        cohort.weights.copy_(before)
        return done

    def _take_step(
        self, cohort: Cohort, work: Work, noise: RecordNoise | None, number: int, done: Collection[str]
    ) -> None:
        if self._has_kernels:
            from fedceo.training.cuda import step

            step.take_step(cohort, work, done)  # its noise is a function of the cohort's keys and step
        else:
            take_step(cohort, work, noise.draw(number, cohort.size) if noise else None)

    @cached_property
    def _budget(self) -> int:
        return budget(self.context.device) if self.most_bytes is None else self.most_bytes

    def _clients_at_once(self, call: Call, workers: int | None) -> int:
        """As many clients as one thread's memory holds."""
        most = self._budget if workers is None else min(self._budget // workers, CACHE_BYTES)
        if self._span is not None and self._goes_by_span(call):
            return max(1, most // self._span.bytes_of_a_client)
        if self._rotation is not None and self._goes_turned(call):
            return max(1, most // self._rotation.bytes_of_a_client)
        return max(1, most // bytes_of_a_client(self.context, call.work, self._kept_for_a_record))

    @cached_property
    def _kept_for_a_record(self) -> int:
        return kept_for_a_record(self.context.model, self.context.federation.shape)


def _cut(calls: Sequence[Call], first: int, last: int) -> Iterator[Call]:
    """The calls for the clients from `first` up to, but without, `last`, counted through all calls."""
    for call in calls:
        clients = range(len(call.clients))[max(first, 0) : max(last, 0)]
        if clients:
            yield call if len(clients) == len(call.clients) else call.part(clients.start, clients.stop)
        first, last = first - len(call.clients), last - len(call.clients)


def cut(places: range, most: int) -> list[range]:
    """The places in as few parts as hold at most so many, of equal sizes but for the last."""
    size = -(-len(places) // -(-len(places) // most))
    return [places[first : first + size] for first in range(0, len(places), size)]

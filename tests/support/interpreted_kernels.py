"""The kernels of a GPU on a CPU, by Triton's interpreter, against the same without kernels; run as a program.

    TRITON_INTERPRET=1 python -m tests.support.interpreted_kernels

A line for each comparison, with how far the two are apart relative to what is compared; ends with 1 if one is too far.
The variable must be set before Triton is imported, so that this is a process of its own.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod

import torch
from torch import Tensor, nn

from fedceo.data import Federation
from fedceo.models.lstm import LSTM
from fedceo.models.mlp import MLP
from fedceo.tensors.weights import Weights
from fedceo.training.batched import step as general
from fedceo.training.batched.chain import Chain
from fedceo.training.batched.cohort import Batch, Cohort
from fedceo.training.batched.products import Product
from fedceo.training.batched.tracing import read_chain
from fedceo.training.context import TrainingContext
from fedceo.training.cuda import blocks, draws, losses, step
from fedceo.training.cuda.branches import Branch
from fedceo.training.cuda.records import gather
from fedceo.training.schedule import Schedule
from fedceo.training.work import RecordPrivacy, Work
from tests.support.philox import philox

CLIENTS, SLOTS = 3, 5
TOLERANCE = {"highest": 2e-5, "high": 1e-2}
"""Relative distances allowed, by the precision of products; float16 has ten bits."""

Apart = tuple[str, float]


class Alone(Branch):
    """No second stream: everything in its turn."""

    @contextmanager
    def beside(self) -> Iterator[None]:
        yield

    def join(self) -> None:
        pass


class Convolutions(nn.Module):
    """Two convolutions, the first on few channels, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3)
        self.three, self.four = nn.Linear(16 * 2 * 2, 20), nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.one(x).relu(), 2)
        x = nn.functional.max_pool2d(self.two(x).relu(), 2)
        return self.four(self.three(x.flatten(1)).relu())


def apart(found: Weights, expected: Weights) -> float:
    return max(float((found[n] - w).norm() / w.norm().clamp_min(1e-12)) for n, w in expected.items())


def gradients(name: str, model: nn.Module, shape: tuple[int, ...], x: Tensor, classes: int) -> Iterator[Apart]:
    """A chain on kernels against that of blocks, means and sums of clipped gradients; one client has no records."""
    chain = read_chain(model, shape)
    weights = {n: p.detach() + 0.02 * torch.randn(CLIENTS, *p.shape) for n, p in model.named_parameters()}
    units: tuple[int, ...] | None = getattr(model, "mask_shape", None)
    mask = None if units is None else 2.0 * (torch.rand(CLIENTS, SLOTS, *units) < 0.5)
    batch = Batch(x, torch.randint(classes, (CLIENTS, SLOTS)), torch.tensor([SLOTS, SLOTS - 2, 0]), mask)
    yield from compared(name, chain, weights, batch, batch)


def compared(name: str, chain: Chain, weights: Weights, given: Batch, plain: Batch) -> Iterator[Apart]:
    """The gradients of the chain on kernels, of the batch given, against those of its blocks, of a plain batch."""
    fused = on_kernels(chain)
    for words, clips in (("means", None), ("clipped", torch.full((CLIENTS,), 0.05))):
        expected = {n: torch.zeros_like(w) for n, w in weights.items()}
        found = {n: torch.full_like(w, torch.nan) for n, w in weights.items()}
        said, mean = fused.gradient(weights, given, clips, found), chain.gradient(weights, plain, clips, expected)
        yield f"{name}, {words}", max(apart(found, expected), float((said - mean).norm() / mean.norm()))


def on_kernels(chain: Chain) -> Chain:
    fused = blocks.fuse(chain.blocks, chain.shape)
    return Chain(fused, chain.shape, chain.entry, losses.cross_entropy, losses.clip_factors, Alone())


def gathered(shape: tuple[int, ...], classes: int) -> Iterator[Apart]:
    """A batch that the kernel puts together, whose records lie where they are if the first layer reads them there."""
    none, records, model = torch.empty(0, dtype=torch.int64), 20, nn.Sequential(nn.Flatten(), nn.Linear(12, 8))
    x, y = torch.randn(records, *shape), torch.randint(classes, (records,))
    data = Federation("random", x, y, [torch.arange(records)], none, [none], x[:1], y[:1], classes, (0.5,), (2.0,))
    context = TrainingContext(model, data, Schedule(0), torch.device("cpu"), torch.float32)
    counts = torch.tensor([SLOTS, SLOTS - 2, 0]).repeat(4, 1)
    batches = torch.randint(records, (4, CLIENTS, SLOTS))
    batches = torch.where(torch.arange(SLOTS) < counts[..., None], batches, context.blank)
    one, chain = replace(cohort_of(False), batches=batches, counts=counts), read_chain(model, shape)
    at = int(one.step)
    plain = Batch(*context.records(batches[at]), counts[at])
    stays = on_kernels(chain).reads_in_place({n: p.shape for n, p in model.named_parameters()})
    found = gather(one, context, in_place=stays)
    yield (
        "labels and counts that differ",
        float((found.labels != plain.labels).sum() + (found.counts != counts[at]).sum()),
    )
    names = dict(zip(SHAPES, chain.blocks[0].names, strict=True))
    yield from compared("gathered", chain, {names[n]: w.contiguous() for n, w in one.named.items()}, found, plain)
    other = replace(one, **{n: getattr(one, n).clone() for n in ("weights", "gradients", "momenta")})
    g, work = torch.randn(CLIENTS, SLOTS, 8), Work(1, 4, 0.1, momentum=0.5)
    rows = found.places.rows if found.places else None
    step.take_product(one, work, Product("weight", "bias", g, found.x.flatten(1 if stays else 2), found.counts, rows))
    step.take_product(other, work, Product("weight", "bias", g, plain.x.flatten(2), plain.counts))
    yield "a step of what was gathered", apart(one.named, other.named)


SHAPES = {"weight": torch.Size((8, 12)), "bias": torch.Size((8,))}
"""Of a linear layer."""


def cohort_of(private: bool) -> Cohort:
    size = sum(map(prod, SHAPES.values()))
    row = -(-size // 16) * 16

    def drawn() -> Tensor:
        rows = torch.randn(CLIENTS, row)
        rows[:, size:] = 0
        return rows

    none = None
    return Cohort(
        shapes=SHAPES, size=size, weights=drawn(), gradients=drawn(), momenta=drawn(), squares=none, starts=drawn(),
        noised=none, shifts=none, batches=torch.zeros(1), counts=torch.zeros(1), masks=none, mask_keys=none,
        steps=torch.tensor([5, 2, 5]), longest=5, step=torch.tensor([3]), rates=torch.tensor([0.1, 0.2, 0.3]),
        clips=torch.ones(CLIENTS) if private else none, stds=torch.tensor([0.5, 1.0, 2.0]) if private else none,
        divisors=torch.tensor([3.0, 4.0, 5.0]), keys=torch.tensor([7, 8, 2**62]) if private else none,
        losses=torch.zeros(CLIENTS),
    )  # fmt: skip


def steps() -> Iterator[Apart]:
    """A step on kernels against that of batched/step.py, with noise and without; one client is done."""
    for words, record in (("noise", RecordPrivacy(1.0, 0.5)), ("none", None)):
        work = Work(1, 4, 0.1, momentum=0.5, proximal=0.3, record=record)
        one = cohort_of(record is not None)
        other = replace(one, **{n: getattr(one, n).clone() for n in ("weights", "gradients", "momenta")})
        noise = None if one.keys is None else step.fill_noise(one.keys, one.step, one.size)
        step.take_step(one, work)
        general.take_step(other, work, noise)
        still = {name: w[[0, 2]] for name, w in other.named.items()}
        moved = {name: w[[0, 2]] for name, w in one.named.items()}
        yield f"a step, {words}", max(apart(moved, still), apart(one.named, other.named))
    work, one = Work(1, 4, 0.1, momentum=0.5, proximal=0.3), cohort_of(False)
    other = replace(one, **{n: getattr(one, n).clone() for n in ("weights", "gradients", "momenta")})
    g, x = torch.randn(CLIENTS, SLOTS, 8), torch.randn(CLIENTS, SLOTS, 12)
    step.take_product(one, work, Product("weight", "bias", g, x, torch.full((CLIENTS,), SLOTS)))
    other.named_gradients["weight"].copy_(torch.bmm(g.mT, x))
    other.named_gradients["bias"].copy_(g.sum(1))
    general.take_step(other, work, None)
    yield "a step of a product", apart(one.named, other.named)


def numbers() -> Iterator[Apart]:
    keys, counts = torch.tensor([12345678901234567, 2**62 + 99]), [1500, 37]
    drawn = draws.fill_numbers(keys, counts).split(counts)
    wrong = 0
    for key, own in zip(keys.tolist(), drawn, strict=True):
        for i in (0, 1, 2, 36, len(own) - 1):
            words = philox(key, i // 2, 0)[i % 2 * 2 :]
            wrong += int(own[i]) != (words[0] << 32 | words[1]) >> 1
    masks = draws.fill_masks(keys[:1], (3, 8), (64,), 0.75)
    for number, entry in ((0, 0), (2, 70), (1, 511)):
        kept = philox(int(keys[0]), entry, number)[0] >> 8 < 0.75 * 2**24
        wrong += abs(float(masks[number].flatten()[entry]) - (1 / 0.75 if kept else 0.0)) > 1e-6
    yield "numbers and masks that are not Philox's", float(wrong)


def comparisons() -> Iterator[Apart]:
    images, tokens = torch.randn(CLIENTS, SLOTS, 3, 13, 13), torch.randint(0, 50, (CLIENTS, SLOTS, 4))
    yield from gradients("convolutions", Convolutions(), (3, 13, 13), images, 4)
    yield from gradients("a mask", MLP((1, 6, 6), 10), (1, 6, 6), torch.randn(CLIENTS, SLOTS, 1, 6, 6), 10)
    tokens = tokens.sort(-1, descending=True).values.to(torch.int32)
    yield from gradients("an LSTM", LSTM((4,), 2), (4,), tokens, 2)
    yield from gathered((3, 2, 2), 8)
    yield from steps()
    yield from numbers()


def main() -> int:
    far = 0
    for precision, tolerance in TOLERANCE.items():
        torch.manual_seed(0)
        torch.set_float32_matmul_precision(precision)
        for name, distance in comparisons():
            print(f"{precision}: {name}: {distance:.1e}")
            far += not distance < tolerance
    return int(far > 0)


if __name__ == "__main__":
    sys.exit(main())
